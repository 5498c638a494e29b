#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "examples/llama/model/any_model.hpp"
#include "examples/llama/model/blocks.hpp"

namespace llama {

/// Runs `tokens` through the model. The logits are never all in memory: `[64 x vocab]` at a time.
/// Throws `std::invalid_argument` if there is no token, one outside the vocabulary, or more than the model's context.
template <class T, class Device>
TokenLogProbabilities token_log_probabilities(const Model<T, Device>& model, Tokens tokens,
                                              typename Device::Execution execution) {
  using Context = typename Device::Context;
  const ModelConfig& config = model.config();
  const Index count = std::ssize(tokens);
  model.check(tokens);
  check_length(config, count);
  Context context(execution);
  BlockResources<T, Device> resources(context, model, count);
  lazyllm::DensePlan plan;
  plan.start(0, count);
  typename Context::template Buffer<T> buffer;
  const RowsView<T> hidden = resources.take(context, buffer, count, config.hidden_size);
  model.embed(context, tokens, hidden);
  for (Index layer = 0; layer < config.layers; ++layer) {
    // Planned as if one more layer came after: of the last one, too, every row is needed.
    AttentionBlock<T, Device>{&resources, layer}.attend(context, plan.layer(layer, config.layers + 1), hidden);
    FeedForwardBlock<T, Device>{&resources, layer}.feed_forward(context, hidden);
  }

  TokenLogProbabilities result{std::vector<float>(tokens.size(), 0.0F), resources.operations};
  const Index predictions = count - 1;
  constexpr Index chunk = 64;
  typename Context::template Buffer<float> logits;
  logits.reserve(context, std::min(chunk, predictions), config.vocab);
  for (Index first = 0; first < predictions; first += chunk) {
    const Index rows = std::min(chunk, predictions - first);
    const RowsView<float> part = logits.rows().subrows(0, rows);
    model.logits(context, hidden.subrows(first, rows),
                 resources.take(context, resources.normed, rows, config.hidden_size), part);
    const auto next = static_cast<std::size_t>(first + 1);
    const auto next_count = static_cast<std::size_t>(rows);
    Device::log_probabilities(context, part, tokens.subspan(next, next_count),
                              std::span(result.values).subspan(next, next_count));
  }
  result.operations += 2.0 * static_cast<double>(predictions) * static_cast<double>(config.hidden_size * config.vocab);
  return result;
}

}  // namespace llama
