#pragma once

#include <cuda_runtime_api.h>
#include <library_types.h>

#include <compare>
#include <cstddef>
#include <functional>
#include <lazyllm/core.hpp>
#include <memory>
#include <string>

#include "examples/llama/base.hpp"

namespace llama {

/// Attention of a prompt that has no history: row i of the queries sees rows 0 to i of K and V, which lie one after the
/// other for each key/value head. All strides are in elements; elements of a head have no gaps.
struct CausalProblem {
  cudaDataType_t type = CUDA_R_16BF;  ///< or CUDA_R_16F
  Index rows = 0;
  Index heads = 0;
  Index kv_heads = 0;
  Index head_dim = 0;
  Index query_stride = 0;    ///< from one row to the next
  Index out_stride = 0;      ///< from one row to the next
  Index key_stride = 0;      ///< of K and V, from one token to the next
  Index kv_head_stride = 0;  ///< of K and V, from one head to the next
  float scale = 1;           ///< of Q K^T

  auto operator<=>(const CausalProblem&) const = default;
};

/// That attention by cuDNN, which has kernels for Hopper's own instructions. Remembers the plan of each problem that it
/// has met: making one takes some 10 to 100 ms. Serves one thread at a time.
class CausalAttention {
 public:
  /// Throws `lazyllm::cuda_error` without a device.
  CausalAttention();
  CausalAttention(const CausalAttention&) = delete;
  CausalAttention& operator=(const CausalAttention&) = delete;
  ~CausalAttention();

  /// Enqueues the attention on `stream`. Returns false, and enqueues nothing, if cuDNN has no kernel for the problem.
  /// Addresses are multiples of 16 bytes; `workspace(bytes)` is scratch memory of the device. Throws
  /// `lazyllm::cuda_error` if a call fails.
  bool run(cudaStream_t stream, const std::function<std::byte*(Index)>& workspace, const CausalProblem& problem,
           const void* queries, const void* keys, const void* values, void* out);

  /// Whether cuDNN has a kernel for a device that need not be there, described as its device properties in JSON, and
  /// can compile it. Throws `lazyllm::cuda_error` if a call fails.
  static bool compiles_for(const CausalProblem& problem, const std::string& device);

 private:
  struct State;

  std::unique_ptr<State> state_;
};

}  // namespace llama
