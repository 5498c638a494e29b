#pragma once

#include <fmt/format.h>

#include <new>
#include <stdexcept>
#include <string_view>

#include "examples/llama/checkpoint/model_config.hpp"
#include "examples/llama/model/host_memory.hpp"

/// \file
/// What takes most memory is known beforehand, and named where there is not enough.

namespace llama {

/// Calls `work`. Throws `std::runtime_error` that names `what` and its `bytes` where memory ends.
template <class Work>
auto with_memory(std::string_view what, double bytes, const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    throw std::runtime_error(
        fmt::format("not enough memory for {}: {:.0f} bytes ({:.1f} GiB)", what, bytes, bytes / (1 << 30)));
  }
}

/// Bytes of an element of `dtype`, "f32" or a type of 16 bit.
inline double element_bytes(std::string_view dtype) { return dtype == "f32" ? 4 : 2; }

/// Bytes of the K/V of a sequence.
inline double kv_bytes(const ModelConfig& config, std::string_view dtype, Index tokens) {
  const double elements =
      2 * static_cast<double>(config.layers) * static_cast<double>(config.kv_heads * config.head_dim);
  return elements * static_cast<double>(tokens) * element_bytes(dtype);
}

/// Calls `work`, which loads a model with `config` to where `placement` says.
template <class Work>
auto with_memory_for_weights(const ModelConfig& config, const Placement& placement, const Work& work) {
  return with_memory("the weights", host_weight_bytes(config, placement), work);
}

/// Calls `work`, which makes a decoder with room for `tokens`.
template <class Work>
auto with_memory_for_keys(const ModelConfig& config, std::string_view dtype, Index tokens, const Work& work) {
  return with_memory(fmt::format("the K/V of {} tokens", tokens), kv_bytes(config, dtype, tokens), work);
}

}  // namespace llama
