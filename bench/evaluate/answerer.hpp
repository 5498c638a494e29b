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
#include "examples/llama/model/cpu.hpp"
#include "examples/llama/model/log_probabilities.hpp"
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
template <class T>
class Answerer {
 public:
  /// `options` are resolved ones. `compressor` may be `model`; only `Method::compress` uses it.
  Answerer(const MethodOptions& options, const Model<T>& model, const Model<T>& compressor, const Tokenizer& tokenizer,
           int threads)
      : options_(options), model_(model), compressor_(compressor), tokenizer_(tokenizer), threads_(threads) {
    if (options.uses_library()) pruner_ = make_pruner(options.pruning, model.config().layers);
  }

  Answer dense(const Question& question) { return generate(with_room(dense_, question), question, question.tokens); }

  /// `seed` is that of `Method::random_drop`.
  Answer answer(const Question& question, std::uint64_t seed) {
    if (options_.uses_library()) return generate(with_room(lazy_, question), question, question.tokens);
    if (!options_.is_filter()) return dense(question);
    const Clock::time_point start = Clock::now();
    const bool bos = tokenizer_.bos() == question.tokens.front();
    const FilterOptions filter = filter_options(options_, bos);
    std::vector<TokenId> kept;
    TokenLogProbabilities log_probabilities;
    if (options_.method == Method::random_drop) {
      kept = keep_at_random(question.tokens, filter, seed);
    } else {
      log_probabilities = token_log_probabilities(compressor_, question.tokens, threads_);
      kept = keep_informative(question.tokens, log_probabilities.values, filter);
    }
    const double filter_ms = milliseconds_since(start);
    Answer answer = generate(with_room(dense_, question), question, kept);
    answer.step_ms.front() += filter_ms;
    answer.prefill_operations += log_probabilities.operations;
    if (options_.method == Method::compress) {
      const Index bytes = kv_bytes(compressor_.config(), std::ssize(question.tokens));
      answer.reserved_bytes = std::max(answer.reserved_bytes, bytes);
      answer.filled_bytes = std::max(answer.filled_bytes, bytes);
    }
    answer.computed_percent = 100 * static_cast<double>(kept.size()) / static_cast<double>(question.tokens.size());
    return answer;
  }

  /// K/V of `tokens` tokens in all layers of the model.
  Index kv_bytes(Index tokens) const { return kv_bytes(model_.config(), tokens); }

 private:
  static Index kv_bytes(const ModelConfig& config, Index tokens) {
    return 2 * tokens * config.layers * config.kv_heads * config.head_dim * static_cast<Index>(sizeof(T));
  }

  template <class Decoder>
  struct Room {
    std::unique_ptr<Decoder> decoder;
    Index capacity = 0;
  };

  template <class Decoder>
  Decoder& with_room(Room<Decoder>& room, const Question& question) {
    const Index needed = std::ssize(question.tokens) + question.max_tokens;
    check_length(model_.config(), needed);
    if (room.capacity < needed) {
      room.decoder.reset();  // before the larger one takes its memory
      constexpr Index step = 1024;
      room.capacity = (needed + step - 1) / step * step;
      if constexpr (std::is_same_v<Decoder, LazyDecoder<T>>) {
        room.decoder = std::make_unique<Decoder>(model_, room.capacity, threads_, *pruner_);
      } else {
        room.decoder = std::make_unique<Decoder>(model_, room.capacity, threads_);
      }
    }
    room.decoder->clear();
    return *room.decoder;
  }

  template <class Decoder>
  Answer generate(Decoder& decoder, const Question& question, const std::vector<TokenId>& prompt) {
    constexpr bool is_lazy = std::is_same_v<Decoder, LazyDecoder<T>>;
    Answer answer;
    const double before = decoder.operations();
    const auto draw = [&](std::span<const float> logits) {
      return likeliest(logits, question, answer.step_ms.empty());
    };
    const auto measure = [&](const GeneratedStep& step) {
      if (answer.step_ms.empty()) answer.prefill_operations = decoder.operations() - before;
      answer.step_ms.push_back(step.ms);
      answer.text += step.text;
      Index filled = kv_bytes(decoder.length());
      Index parked = 0;
      if constexpr (is_lazy) {
        const auto depths = decoder.sequence().depths();
        filled = kv_bytes(1) / model_.config().layers * std::accumulate(depths.begin(), depths.end(), Index{0});
        parked = decoder.stats().aux_bytes;
      }
      answer.reserved_bytes = std::max(answer.reserved_bytes, kv_bytes(decoder.length()) + parked);
      answer.filled_bytes = std::max(answer.filled_bytes, filled + parked);
    };
    answer.text += generate_tokens(decoder, prompt, question.max_tokens, question.stop, &tokenizer_, draw, measure);
    if constexpr (is_lazy) answer.computed_percent = decoder.sequence().computed_percent(std::ssize(prompt));
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
  const Model<T>& model_;
  const Model<T>& compressor_;
  const Tokenizer& tokenizer_;
  int threads_;
  std::optional<lazyllm::TokenPruner<lazyllm::AnyPolicy>> pruner_;
  Sampler greedy_{Sampling{}};
  Room<DenseDecoder<T>> dense_;
  Room<LazyDecoder<T>> lazy_;
};

}  // namespace llama
