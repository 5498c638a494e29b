#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "examples/llama/library.hpp"

namespace llama::kernels {

/// Throws `lazyllm::cuda_error` unless `code` is success.
inline void check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // so that the next call does not report this one again
  throw lazyllm::cuda_error(std::string(call) + ": " + cudaGetErrorString(code));
}

}  // namespace llama::kernels
