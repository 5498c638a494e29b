#pragma once

#include "examples/llama/kernels/cuda/device_plan.hpp"

namespace llama::kernels {

/// Where a token's K and V lie, in elements from the first of its layer and head.
template <class T>
__device__ Index offset_of(const KvView<T>& cache, Position position) {
  if (cache.page_table == nullptr) return position * cache.position_stride;
  const auto size = static_cast<std::uint32_t>(cache.page_size);
  const auto place = static_cast<std::uint32_t>(position);
  const int page = __popc(size - 1);  // page_size is a power of two
  return cache.page_table[place >> page] * cache.page_stride + (place & (size - 1)) * cache.position_stride;
}

}  // namespace llama::kernels
