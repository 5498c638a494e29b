#pragma once

#include "lazyllm/backend/cuda/context.hpp"

/// \file
/// The two ways in which the backend's work gets onto the stream.

#ifdef __CUDACC__

#include <thrust/for_each.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/system/cuda/execution_policy.h>
#include <thrust/system_error.h>

#include <cstdint>
#include <exception>

namespace lazyllm::cuda::detail {

/// Enqueues `function(i)` for all i in [0, count). Throws `cuda_error`.
template <class Function>
void for_each(Context& context, std::uint32_t count, Function function) {
  try {
    thrust::for_each_n(thrust::cuda::par_nosync.on(context.stream()), thrust::counting_iterator<std::uint32_t>(0),
                       count, function);
  } catch (const thrust::system_error& error) {
    throw cuda_error(std::string("lazyllm: thrust::for_each_n: ") + error.what());
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
