#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "examples/llama/library.hpp"
#include "examples/llama/model/cpu.hpp"

namespace llama {

/// How likely a model finds each token of a text.
struct TokenLogProbabilities {
  std::vector<float> values;  ///< `[tokens]` natural logarithm of p(token | tokens before it); the first one's is 0
  double operations = 0;      ///< floating-point operations, the classifier's included
};

/// Runs `tokens` through the model. The logits are never all in memory: `[64 x vocab]` at a time.
/// Throws `std::invalid_argument` if there is no token, one outside the vocabulary, or more than the model's
/// context.
template <class T>
TokenLogProbabilities token_log_probabilities(const Model<T>& model, Tokens tokens, int threads) {
  const ModelConfig& config = model.config();
  const Index count = std::ssize(tokens);
  model.check(tokens);
  check_length(config, count);
  lazyllm::cpu::Context context(threads);
  Shared<T> shared(context, model, count);
  lazyllm::PlanBuffers plan;
  plan.start(0, count);
  lazyllm::cpu::Context::Buffer<T> buffer;
  const RowsView<T> hidden = shared.take(context, buffer, count, config.hidden_size);
  model.embed(context, tokens, hidden);
  for (Index layer = 0; layer < config.layers; ++layer) {
    // Planned as if one more layer came after: of the last one, too, every row is needed.
    AttentionBlock<T>{&shared, layer}.attend(context, plan.layer(layer, config.layers + 1), hidden);
    FeedForwardBlock<T>{&shared, layer}.feed_forward(context, hidden);
  }

  TokenLogProbabilities result{std::vector<float>(tokens.size(), 0.0F), shared.operations};
  const Index predictions = count - 1;
  constexpr Index chunk = 64;
  std::vector<float> logits(static_cast<std::size_t>(std::min(chunk, predictions) * config.vocab));
  for (Index first = 0; first < predictions; first += chunk) {
    const Index rows = std::min(chunk, predictions - first);
    const RowsView<float> part(logits.data(), rows, config.vocab);
    model.logits(context, hidden.subrows(first, rows), shared.take(context, shared.normed, rows, config.hidden_size),
                 part);
    context.for_chunks(rows, 1, [&](Index row, Index) {
      const std::span<const float> logit(part.row(row), static_cast<std::size_t>(config.vocab));
      const float highest = *std::ranges::max_element(logit);
      double sum = 0;
      for (const float value : logit) sum += std::exp(value - highest);
      const auto next = static_cast<std::size_t>(first + row + 1);
      result.values[next] = logit[static_cast<std::size_t>(tokens[next])] - highest - static_cast<float>(std::log(sum));
    });
  }
  result.operations += 2.0 * static_cast<double>(predictions) * static_cast<double>(config.hidden_size * config.vocab);
  return result;
}

}  // namespace llama
