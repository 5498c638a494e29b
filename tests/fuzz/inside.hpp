#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "examples/llama/checkpoint/tensor.hpp"

namespace llama {

/// Stops the fuzzer when a tensor is not a part of `file`, or has fewer bytes than its elements need.
inline void require_inside(const StoredTensors& tensors, std::span<const std::byte> file) {
  const std::byte* const end = file.data() + file.size();
  for (const auto& [name, tensor] : tensors) {
    const std::less_equal<> before;
    const std::byte* const tensor_end = tensor.data.data() + tensor.data.size();
    if (!before(file.data(), tensor.data.data()) || !before(tensor_end, end)) __builtin_trap();
    if (tensor.dtype != "F32") continue;
    const Index elements = Tensor{DType::f32, tensor.shape, tensor.data.data()}.elements();
    if (static_cast<std::size_t>(elements) != tensor.data.size() / sizeof(float)) __builtin_trap();
  }
}

}  // namespace llama
