#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/evaluate/filters.hpp"
#include "bench/evaluate/method.hpp"
#include "examples/llama/model/any_model.hpp"
#include "examples/llama/model/sampler.hpp"
#include "examples/llama/program/generation.hpp"
#include "examples/llama/program/timing.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

namespace llama {

/// A prompt as the model gets it.
struct Question {
  std::vector<TokenId> tokens;
  Index max_tokens = 1;
  std::vector<TokenId> stop;    ///< each ends the answer
  bool stop_not_first = false;  ///< the answer has one other token at least
};

/// What one way to answer a question gave and took. Greedy: always the most likely token.
struct Answer {
  std::string text;
  std::vector<double> step_ms;    ///< the first is the time to the first token, that of a filter included
  double prefill_operations = 0;  ///< floating-point operations until then, those of a filter included
  double computed_percent = 100;  ///< of the (token, layer) pairs of the whole prompt, until the end of the answer
  Index reserved_bytes = 0;       ///< peak of K/V for all tokens that the model saw, plus parked rows
  Index filled_bytes = 0;         ///< peak of the K/V that were computed, plus parked rows

  /// Time to generate the first `tokens` tokens.
  double ms(std::size_t tokens) const {
    return std::accumulate(step_ms.begin(), step_ms.begin() + static_cast<std::ptrdiff_t>(tokens), 0.0);
  }
};

/// Answers questions with one method, and with dense inference to compare. Holds a K/V cache for each that grows to the
/// longest question so far; the models and the tokenizer are the caller's.
class Answerer {
 public:
  /// `options` are resolved ones. `compressor` may be `model`; only `Method::compress` uses it.
  Answerer(const MethodOptions& options, const AnyModel& model, const AnyModel& compressor, const Tokenizer& tokenizer)
      : options_(options), model_(model), compressor_(compressor), tokenizer_(tokenizer) {
    if (options.uses_library())
      pruner_ = make_pruner(options.pruning, model.config().layers, widths_of(model.config()));
  }

  Answer dense(const Question& question) { return generate(dense_for(question), question, question.tokens); }

  /// `seed` is that of `Method::random_drop`.
  Answer answer(const Question& question, std::uint64_t seed) {
    if (options_.uses_library()) return generate(lazy_for(question), question, question.tokens);
    if (!options_.is_filter()) return dense(question);
    const Clock::time_point start = Clock::now();
    const bool bos = tokenizer_.bos() == question.tokens.front();
    const FilterOptions filter = filter_options(options_, bos);
    std::vector<TokenId> kept;
    TokenLogProbabilities log_probabilities;
    if (options_.method == Method::random_drop) {
      kept = keep_at_random(question.tokens, filter, seed);
    } else {
      log_probabilities = compressor_.log_probabilities(question.tokens);
      kept = keep_informative(question.tokens, log_probabilities.values, filter);
    }
    const double filter_ms = milliseconds_since(start);
    Answer answer = generate(dense_for(question), question, kept);
    answer.step_ms.front() += filter_ms;
    answer.prefill_operations += log_probabilities.operations;
    if (options_.method == Method::compress) {
      const Index bytes = compressor_.kv_bytes(std::ssize(question.tokens));
      answer.reserved_bytes = std::max(answer.reserved_bytes, bytes);
      answer.filled_bytes = std::max(answer.filled_bytes, bytes);
    }
    answer.computed_percent = 100 * static_cast<double>(kept.size()) / static_cast<double>(question.tokens.size());
    return answer;
  }

 private:
  /// A decoder that is made anew, larger, where a question needs more than it has room for.
  struct GrowingDecoder {
    std::unique_ptr<AnyDecoder> decoder;
    Index capacity = 0;
  };

  /// `make(capacity)` makes the decoder.
  template <class Make>
  AnyDecoder& grown(GrowingDecoder& growing, const Question& question, const Make& make) {
    const Index needed = std::ssize(question.tokens) + question.max_tokens;
    check_length(model_.config(), needed);
    if (growing.capacity < needed) {
      growing.decoder.reset();  // before the larger one takes its memory
      constexpr Index step = 1024;
      growing.capacity = (needed + step - 1) / step * step;
      growing.decoder = make(growing.capacity);
    }
    growing.decoder->clear();
    return *growing.decoder;
  }

  AnyDecoder& dense_for(const Question& question) {
    return grown(dense_, question, [&](Index capacity) { return model_.dense(capacity); });
  }
  AnyDecoder& lazy_for(const Question& question) {
    return grown(lazy_, question, [&](Index capacity) { return model_.lazy(capacity, *pruner_); });
  }

  Answer generate(AnyDecoder& decoder, const Question& question, const std::vector<TokenId>& prompt) {
    Answer answer;
    const double before = decoder.operations();
    const auto draw = [&](std::span<const float> logits) {
      return likeliest(logits, question, answer.step_ms.empty());
    };
    const auto measure = [&](const GeneratedStep& step) {
      if (answer.step_ms.empty()) answer.prefill_operations = decoder.operations() - before;
      answer.step_ms.push_back(step.ms);
      answer.text += step.text;
      const Index reserved = model_.kv_bytes(decoder.length());
      const auto depths = decoder.depths();
      const Index filled = depths.empty() ? reserved
                                          : model_.kv_bytes(1) / model_.config().layers *
                                                std::accumulate(depths.begin(), depths.end(), Index{0});
      const Index parked = decoder.stats().aux_bytes;
      answer.reserved_bytes = std::max(answer.reserved_bytes, reserved + parked);
      answer.filled_bytes = std::max(answer.filled_bytes, filled + parked);
    };
    answer.text += generate_tokens(decoder, prompt, question.max_tokens, question.stop, &tokenizer_, draw, measure);
    answer.computed_percent = decoder.computed_percent(std::ssize(prompt));
    return answer;
  }

  /// Throws `std::invalid_argument` if a logit is not a finite number.
  TokenId likeliest(std::span<const float> logits, const Question& question, bool first) {
    if (!first || !question.stop_not_first) return greedy_.draw(logits);
    std::vector<float> allowed(logits.begin(), logits.end());
    for (const TokenId token : question.stop) {
      if (std::cmp_less(token, allowed.size())) {
        allowed[static_cast<std::size_t>(token)] = std::numeric_limits<float>::lowest();
      }
    }
    return greedy_.draw(allowed);
  }

  MethodOptions options_;
  const AnyModel& model_;
  const AnyModel& compressor_;
  const Tokenizer& tokenizer_;
  std::optional<lazyllm::TokenPruner<lazyllm::AnyPolicy>> pruner_;
  Sampler greedy_{Sampling{}};
  GrowingDecoder dense_;
  GrowingDecoder lazy_;
};

}  // namespace llama
