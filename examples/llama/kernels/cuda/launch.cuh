#pragma once

#include <cstddef>
#include <cstdint>

#include "lazyllm/backend/cuda/block.cuh"
#include "lazyllm/backend/cuda/context.hpp"
#include "lazyllm/backend/cuda/launch.cuh"

/// \file
/// Launches with shared memory whose size is known at run time.

#ifdef __CUDACC__

namespace lazyllm::llama::kernels {

/// The block's shared memory that the launch asked for.
__device__ inline std::byte* shared_memory() {
  extern __shared__ uint4 memory[];
  return reinterpret_cast<std::byte*>(memory);
}

/// Enqueues `kernel(arguments...)` on `blocks` blocks of `threads` threads with `shared` bytes of shared memory each.
/// Throws `cuda_error`.
template <class... Parameters, class... Arguments>
void launch_shared(cuda::Context& context, dim3 blocks, unsigned threads, std::size_t shared,
                   void (*kernel)(Parameters...), Arguments... arguments) {
  cuda::detail::check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
                      "cudaFuncSetAttribute");
  kernel<<<blocks, threads, shared, context.stream()>>>(arguments...);
  cuda::detail::check(cudaGetLastError(), "kernel launch");
}

}  // namespace lazyllm::llama::kernels

#endif
