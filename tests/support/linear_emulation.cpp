#include "examples/llama/kernels/cuda/linear.hpp"
#include "examples/llama/library.hpp"
#include "support/cuda_emulation.hpp"

// Matrix products of the emulated device, the obvious way.

namespace llama {

struct Gemm::State {};

Gemm::Gemm() = default;
Gemm::~Gemm() = default;

namespace {

/// Calls `body` with a null pointer to the type.
template <class Body>
void with_type(cudaDataType_t type, const Body& body) {
  switch (type) {
    case CUDA_R_16F: return body(static_cast<__half*>(nullptr));
    case CUDA_R_16BF: return body(static_cast<__nv_bfloat16*>(nullptr));
    default: return body(static_cast<float*>(nullptr));
  }
}

}  // namespace

void Gemm::multiply(lazyllm::cuda::Context& context, const LinearProblem& problem, const void* weights,
                    const void* bias, const void* x, void* y) {
  const auto enqueue = [=]<class T, class Y>(T*, Y*, cudaStream_t stream) {
    lazyllm::test::cuda_emulation::enqueue(stream, [=] {
      for (Index row = 0; row < problem.rows; ++row) {
        const T* const from = static_cast<const T*>(x) + row * problem.x_stride;
        Y* const to = static_cast<Y*>(y) + row * problem.y_stride;
        for (Index i = 0; i < problem.out; ++i) {
          const T* const weight = static_cast<const T*>(weights) + i * problem.in;
          float sum = 0;
          for (Index j = 0; j < problem.in; ++j) sum += static_cast<float>(from[j]) * static_cast<float>(weight[j]);
          if (problem.bias) sum += static_cast<float>(static_cast<const T*>(bias)[i]);
          to[i] = static_cast<Y>(problem.accumulate ? static_cast<float>(to[i]) + sum : sum);
        }
      }
    });
  };
  with_type(problem.type,
            [&](auto* t) { with_type(problem.y_type, [&](auto* result) { enqueue(t, result, context.stream()); }); });
}

}  // namespace llama
