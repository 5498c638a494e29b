#pragma once

#include <cstddef>
#include <cstdint>
#include <lazyllm/cuda_context.hpp>

#include "examples/llama/kernels/cuda/check.hpp"

/// \file
/// Launches of kernels on a context's stream, with and without shared memory whose size is known at run time.

#ifdef __CUDACC__

namespace llama::kernels {

/// The block's shared memory that the launch asked for.
__device__ inline std::byte* shared_memory() {
  extern __shared__ uint4 memory[];
  return reinterpret_cast<std::byte*>(memory);
}

/// Enqueues `kernel(arguments...)` on `blocks` blocks of `threads` threads. Throws `lazyllm::cuda_error`.
template <class... Parameters, class... Arguments>
void launch(lazyllm::cuda::Context& context, dim3 blocks, unsigned threads, void (*kernel)(Parameters...),
            Arguments... arguments) {
  kernel<<<blocks, threads, 0, context.stream()>>>(arguments...);
  check(cudaGetLastError(), "kernel launch");
}

/// As `launch`, with `shared` bytes of shared memory for each block.
template <class... Parameters, class... Arguments>
void launch_shared(lazyllm::cuda::Context& context, dim3 blocks, unsigned threads, std::size_t shared,
                   void (*kernel)(Parameters...), Arguments... arguments) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared)),
        "cudaFuncSetAttribute");
  kernel<<<blocks, threads, shared, context.stream()>>>(arguments...);
  check(cudaGetLastError(), "kernel launch");
}

}  // namespace llama::kernels

#endif
