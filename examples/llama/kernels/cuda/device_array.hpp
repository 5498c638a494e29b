#pragma once

#include <lazyllm/cuda_context.hpp>
#include <span>

#include "examples/llama/base.hpp"

namespace llama {

/// The values of T in device memory, allocated and freed in the order of a context's stream.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;

  /// Uninitialised. Throws `lazyllm::cuda_error` without memory.
  DeviceArray(lazyllm::cuda::Context& context, Index count) : count_(count) { memory_.reserve(context, count, 1); }

  T* data() const { return memory_.rows().data; }
  std::span<const T> values() const { return {data(), static_cast<std::size_t>(count_)}; }
  Index count() const { return count_; }
  Index bytes() const { return count_ * static_cast<Index>(sizeof(T)); }

 private:
  lazyllm::cuda::Context::Buffer<T> memory_;
  Index count_ = 0;
};

}  // namespace llama
