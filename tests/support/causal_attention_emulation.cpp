#include "support/causal_attention_emulation.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "examples/llama/kernels/cuda/causal_attention.hpp"
#include "support/cuda_emulation.hpp"

// Attention of whole prompts, the obvious way.

namespace llama {

struct CausalAttention::State {};

CausalAttention::CausalAttention() {
  if (test::emulated_cudnn().missing) throw lazyllm::cuda_error("cudnnCreate: it is not there");
}
CausalAttention::~CausalAttention() = default;

namespace {

template <class T>
void attend(const CausalProblem& problem, const void* queries, const void* keys, const void* values, void* out) {
  std::vector<float> weights(static_cast<std::size_t>(problem.rows));
  for (Index head = 0; head < problem.heads; ++head) {
    const Index kv_head = head / (problem.heads / problem.kv_heads);
    const T* const first_key = static_cast<const T*>(keys) + kv_head * problem.kv_head_stride;
    const T* const first_value = static_cast<const T*>(values) + kv_head * problem.kv_head_stride;
    for (Index row = 0; row < problem.rows; ++row) {
      const T* const query = static_cast<const T*>(queries) + row * problem.query_stride + head * problem.head_dim;
      T* const result = static_cast<T*>(out) + row * problem.out_stride + head * problem.head_dim;
      const auto visible = static_cast<std::size_t>(row + 1);
      for (std::size_t key = 0; key < visible; ++key) {
        const T* const other = first_key + static_cast<Index>(key) * problem.key_stride;
        float product = 0;
        for (Index i = 0; i < problem.head_dim; ++i) {
          product += static_cast<float>(query[i]) * static_cast<float>(other[i]);
        }
        weights[key] = problem.scale * product;
      }
      const float highest = *std::max_element(weights.begin(), weights.begin() + static_cast<Index>(visible));
      float sum = 0;
      for (std::size_t key = 0; key < visible; ++key) sum += weights[key] = std::exp(weights[key] - highest);
      for (Index i = 0; i < problem.head_dim; ++i) {
        float mean = 0;
        for (std::size_t key = 0; key < visible; ++key) {
          mean +=
              weights[key] / sum * static_cast<float>(first_value[static_cast<Index>(key) * problem.key_stride + i]);
        }
        result[i] = static_cast<T>(mean);
      }
    }
  }
}

}  // namespace

bool CausalAttention::run(cudaStream_t stream, const std::function<std::byte*(Index)>&, const CausalProblem& problem,
                          const void* queries, const void* keys, const void* values, void* out) {
  test::EmulatedCudnn& cudnn = test::emulated_cudnn();
  if (!cudnn.has_kernels) return false;
  for (const void* const address : {queries, keys, values, static_cast<const void*>(out)}) {
    if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) throw std::logic_error("cuDNN: an address is not aligned");
  }
  ++cudnn.runs;
  lazyllm::test::cuda_emulation::enqueue(stream, [=] {
    (problem.type == CUDA_R_16F ? attend<__half> : attend<__nv_bfloat16>)(problem, queries, keys, values, out);
  });
  return true;
}

namespace test {

EmulatedCudnn& emulated_cudnn() {
  static EmulatedCudnn cudnn;
  return cudnn;
}

}  // namespace test
}  // namespace llama
