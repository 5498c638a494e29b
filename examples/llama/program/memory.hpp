#pragma once

#include <fmt/format.h>

#include <new>
#include <stdexcept>
#include <string_view>

#include "examples/llama/checkpoint/model_config.hpp"

/// \file
/// What takes most memory is known beforehand, and named where there is not enough.

namespace lazyllm::llama {

/// Calls `work`. Throws `std::runtime_error` that names `what` and its `bytes` where memory ends.
template <class Work>
auto with_memory(std::string_view what, double bytes, const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    throw std::runtime_error(fmt::format("not enough memory for {}: {:.0f} bytes ({:.1f} GiB)", what, bytes,
                                         bytes / (1 << 30)));
  }
}

/// Bytes of an element of `dtype`, "f32" or a type of 16 bit.
inline double element_bytes(std::string_view dtype) { return dtype == "f32" ? 4 : 2; }

/// Elements of a model's weights, but for the small norms and biases.
inline double weight_elements(const ModelConfig& config) {
  const auto product = [](Index a, Index b) { return static_cast<double>(a) * static_cast<double>(b); };
  const double attention = 2 * product(config.width, (config.heads + config.kv_heads) * config.head_dim);
  const double layer = attention + 3 * product(config.width, config.intermediate_size);
  return static_cast<double>(config.layers) * layer +
         (config.tied_embeddings ? 1 : 2) * product(config.vocab, config.width);
}

/// Calls `work`, which loads a model with `config`.
template <class Work>
auto with_memory_for_weights(const ModelConfig& config, std::string_view dtype, const Work& work) {
  return with_memory("the weights", weight_elements(config) * element_bytes(dtype), work);
}

/// Calls `work`, which makes a decoder with room for `tokens`.
template <class Work>
auto with_memory_for_keys(const ModelConfig& config, std::string_view dtype, Index tokens, const Work& work) {
  const double bytes = 2 * static_cast<double>(config.layers) *
                       static_cast<double>(config.kv_heads * config.head_dim) * static_cast<double>(tokens) *
                       element_bytes(dtype);
  return with_memory(fmt::format("the K/V of {} tokens", tokens), bytes, work);
}

}  // namespace lazyllm::llama
