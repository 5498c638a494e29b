#pragma once

#include "examples/llama/checkpoint/model_config.hpp"
#include "lazyllm/core/positions.hpp"

namespace lazyllm::llama {

/// Floating-point operations of a dense prefill of `tokens` tokens, as `DenseDecoder::operations` counts them: two for
/// each multiply-add of linear layers and attention. Embedding and classifier are left out, as they are there.
inline double dense_prefill_operations(const ModelConfig& config, Index tokens) {
  const auto rows = static_cast<double>(tokens);
  const auto width = static_cast<double>(config.width);
  const auto query_width = static_cast<double>(config.heads * config.head_width);
  const auto kv_width = static_cast<double>(config.kv_heads * config.head_width);
  const double key_value = 2 * width * 2 * kv_width;
  // Query and output projection, and the MLP.
  const double rest = 2 * width * 2 * query_width + 2 * width * 3 * static_cast<double>(config.ffn_width);
  const double pairs = rows * (rows + 1) / 2;
  const double layer = rows * (key_value + rest) + 4 * pairs * query_width;
  const double last_layer = rows * key_value + rest + 4 * rows * query_width;  // only one row goes on from there
  return static_cast<double>(config.layers - 1) * layer + last_layer;
}

}  // namespace lazyllm::llama
