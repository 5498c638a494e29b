#include "examples/llama/kernels/cuda/gemm.hpp"
#include "support/cuda_emulation.hpp"

// Matrix products of the emulated device, the obvious way.

namespace lazyllm::llama {

struct Gemm::State {};

Gemm::Gemm() = default;
Gemm::~Gemm() = default;

namespace {

template <class T, class Y>
void enqueue_product(cuda::Context& context, const LinearView<T>& linear, Rows<const T> x, Rows<Y> y, bool accumulate) {
  check_linear(linear, x, y);
  test::cuda_emulation::enqueue(context.stream(), [=] {
    for (Index row = 0; row < x.rows; ++row) {
      for (Index i = 0; i < linear.out; ++i) {
        const T* const weights = linear.weights + i * linear.in;
        float sum = 0;
        for (Index j = 0; j < linear.in; ++j) sum += static_cast<float>(x.row(row)[j]) * static_cast<float>(weights[j]);
        if (linear.bias != nullptr) sum += static_cast<float>(linear.bias[i]);
        Y& result = y.row(row)[i];
        result = static_cast<Y>(accumulate ? static_cast<float>(result) + sum : sum);
      }
    }
  });
}

}  // namespace

template <class T, class Y>
requires std::same_as<Y, T> || std::same_as<Y, float>
void Gemm::apply(cuda::Context& context, const LinearView<T>& linear, Rows<const T> x, Rows<Y> y) const {
  enqueue_product(context, linear, x, y, false);
}

template <class T>
void Gemm::accumulate(cuda::Context& context, const LinearView<T>& linear, Rows<const T> x, Rows<T> y) const {
  enqueue_product(context, linear, x, y, true);
}

#define LAZYLLM_INSTANTIATE(T, Y) \
  template void Gemm::apply(cuda::Context&, const LinearView<T>&, Rows<const T>, Rows<Y>) const;
#define LAZYLLM_INSTANTIATE_SUM(T) \
  template void Gemm::accumulate(cuda::Context&, const LinearView<T>&, Rows<const T>, Rows<T>) const;
LAZYLLM_INSTANTIATE(float, float)
LAZYLLM_INSTANTIATE(__half, __half)
LAZYLLM_INSTANTIATE(__half, float)
LAZYLLM_INSTANTIATE(__nv_bfloat16, __nv_bfloat16)
LAZYLLM_INSTANTIATE(__nv_bfloat16, float)
LAZYLLM_INSTANTIATE_SUM(float)
LAZYLLM_INSTANTIATE_SUM(__half)
LAZYLLM_INSTANTIATE_SUM(__nv_bfloat16)
#undef LAZYLLM_INSTANTIATE
#undef LAZYLLM_INSTANTIATE_SUM

}  // namespace lazyllm::llama
