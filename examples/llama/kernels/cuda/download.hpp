#pragma once

#include <lazyllm/cuda_context.hpp>

#include "examples/llama/kernels/cuda/check.hpp"

namespace llama {

/// `count` values of the device in host memory, once all work on the stream has run; valid until the context's next
/// results. Throws `lazyllm::cuda_error`.
template <class T>
const T* download(lazyllm::cuda::Context& context, const T* from, Index count) {
  const Index bytes = count * static_cast<Index>(sizeof(T));
  return reinterpret_cast<const T*>(context.fetch(bytes, [&](std::byte* host) {
    kernels::check(
        cudaMemcpyAsync(host, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, context.stream()),
        "cudaMemcpyAsync");
  }));
}

}  // namespace llama
