#pragma once

#include <algorithm>

#include "examples/llama/checkpoint/model_config.hpp"
#include "examples/llama/library.hpp"

namespace llama {

/// Floating-point operations of the prefill of `tokens` tokens as the decoders count them, dense without a preset: two
/// for each multiply-add of linear layers and attention; embedding, classifier and scoring are left out.
inline double prefill_operations(const ModelConfig& config, Index tokens, const lazyllm::Preset& preset = {}) {
  const auto hidden_size = static_cast<double>(config.hidden_size);
  const auto query_width = static_cast<double>(config.heads * config.head_dim);
  const double key_value = 4 * hidden_size * static_cast<double>(config.kv_heads * config.head_dim);
  const double query_and_output = 4 * hidden_size * query_width;
  const double feed_forward = 6 * hidden_size * static_cast<double>(config.intermediate_size);
  const Index safe = std::min(tokens, preset.protect_first + preset.protect_last);
  const bool prunes = tokens >= preset.min_tokens.value_or(0);
  Index active = tokens;
  double sum = 0;
  for (Index layer = 0; layer < config.layers; ++layer) {
    const auto rows = static_cast<double>(active);
    sum += rows * key_value;
    if (layer + 1 == config.layers) {  // only the last row goes on from there
      sum += query_and_output + feed_forward + 4 * rows * query_width;
      break;
    }
    sum += rows * query_and_output + 2 * rows * (rows + 1) * query_width;
    if (const double* keep = prunes ? preset.schedule.find(layer + 1) : nullptr)
      active = std::max(lazyllm::keep_count(*keep, active), safe);
    sum += static_cast<double>(active) * feed_forward;  // not of the rows that are pruned here
  }
  return sum;
}

}  // namespace llama
