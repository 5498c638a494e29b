#pragma once

#include "lazyllm/backend/cuda/context.hpp"

/// \file
/// The two ways in which the backend's work gets onto the stream. With `LAZYLLM_CUDA_EMULATION` defined, a C++ compiler
/// takes the backend without them, and the includer has defined both to run kernels on the CPU. That is for the
/// library's tests; see docs/design.md.

#ifdef __CUDACC__

#include <thrust/system/cuda/execution_policy.h>
#include <thrust/system_error.h>

namespace lazyllm::cuda::detail {

/// Enqueues `call(policy)`, a call of a Thrust algorithm on `count` elements; nothing for none. Throws `cuda_error`.
template <class Call>
void thrust_call(Context& context, Index count, const Call& call) {
  if (count == 0) return;
  try {
    call(thrust::cuda::par_nosync.on(context.stream()));
  } catch (const thrust::system_error& error) {
    lazyllm::detail::fail<cuda_error>("Thrust: ", error.what());
  }
}

/// Enqueues `kernel(arguments…)` on `blocks` blocks of `threads` threads. Throws `cuda_error`.
template <class... Parameters, class... Arguments>
void launch(Context& context, dim3 blocks, unsigned threads, void (*kernel)(Parameters...), Arguments... arguments) {
  kernel<<<blocks, threads, 0, context.stream()>>>(arguments...);
  check(cudaGetLastError(), "kernel launch");
}

}  // namespace lazyllm::cuda::detail

#elif !defined(LAZYLLM_CUDA_EMULATION)
#error "lazyllm/cuda.cuh must be compiled as CUDA C++"
#endif
