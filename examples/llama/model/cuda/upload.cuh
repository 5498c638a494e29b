#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <lazyllm/cuda.cuh>
#include <type_traits>

#include "examples/llama/kernels/cuda/block.cuh"
#include "examples/llama/kernels/cuda/launch.cuh"

namespace llama {

/// Large copies go through pinned memory in pieces of this size, some of which are under way at a time.
inline constexpr Index upload_bytes = Index{2} << 20;

namespace kernels {

inline constexpr unsigned convert_threads = 256;

template <class From, class To>
__global__ void __launch_bounds__(convert_threads) convert(const From* from, Index count, To* to) {
  const Index i = Index{blockIdx.x} * convert_threads + thread();
  if (i < count) to[i] = static_cast<To>(static_cast<float>(from[i]));
}

}  // namespace kernels

/// Enqueues a copy of `count` values at `from`, which need not be aligned, to the device as To. `from` may be changed
/// afterwards.
template <class From, class To>
void upload_as(lazyllm::cuda::Context& context, const std::byte* from, Index count, To* to) {
  constexpr Index piece = upload_bytes / static_cast<Index>(sizeof(From));
  for (Index first = 0; first < count; first += piece) {
    const Index values = std::min(piece, count - first);
    const Index bytes = values * static_cast<Index>(sizeof(From));
    const auto fill = [&](std::byte* host) {
      std::memcpy(host, from + first * static_cast<Index>(sizeof(From)), static_cast<std::size_t>(bytes));
    };
    if constexpr (std::is_same_v<From, To>) {
      context.upload(reinterpret_cast<std::byte*>(to + first), bytes, fill);
    } else {
      std::byte* const stored = context.workspace(bytes);
      context.upload(stored, bytes, fill);
      const auto blocks = static_cast<unsigned>((values + kernels::convert_threads - 1) / kernels::convert_threads);
      kernels::launch(context, dim3(blocks), kernels::convert_threads, kernels::convert<From, To>,
                      reinterpret_cast<const From*>(stored), values, to + first);
    }
  }
}

}  // namespace llama
