#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <concepts>
#include <memory>

#include "lazyllm/backend/cuda/context.hpp"
#include "lazyllm/core/rows.hpp"
#include "lazyllm/error.hpp"

namespace lazyllm::llama {

/// A dense layer on the device: weights `[out x in]` row-major and a bias `[out]`, or null. Nothing is owned.
template <class T>
struct LinearView {
  const T* weights = nullptr;
  const T* bias = nullptr;
  Index in = 0;
  Index out = 0;
};

/// Throws `lazyllm::invalid_argument` unless x is `[rows x in]` and y `[rows x out]`, and for a bias with results of
/// another type than the weights.
template <class T, class Y>
void check_linear(const LinearView<T>& linear, Rows<const T> x, Rows<Y> y) {
  if (x.width != linear.in || y.width != linear.out || x.rows != y.rows)
    detail::fail("Gemm: x [", x.rows, " x ", x.width, "] and y [", y.rows, " x ", y.width, "], allowed are [rows x ",
                 linear.in, "] and [rows x ", linear.out, "]");
  if (linear.bias != nullptr && !std::same_as<T, Y>)
    detail::fail("Gemm: a bias with results of another type than the weights is not supported");
}

/// Matrix products on the device, by cuBLASLt: inputs of `float`, `__half` or `__nv_bfloat16`, sums in float. Remembers
/// the best algorithm for each shape that it has met. Serves one thread of the caller at a time; all work is enqueued
/// on the context's stream and takes scratch memory of the context. `x` `[rows x in]` and `y` `[rows x out]` may have
/// gaps between rows. All throw `lazyllm::invalid_argument` when the shapes do not fit each other, `cuda_error` when a
/// call of cuBLASLt fails.
class Gemm {
 public:
  Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;
  ~Gemm();

  /// y = x W^T + bias. `y` holds T, or float to spare logits the rounding: then without a bias unless T is float. Any
  /// number of rows, 0 included.
  template <class T, class Y>
  requires std::same_as<Y, T> || std::same_as<Y, float>
  void apply(cuda::Context& context, const LinearView<T>& linear, Rows<const T> x, Rows<Y> y) const;

  /// y += x W^T + bias, summed before the result is rounded to T: a residual connection.
  template <class T>
  void accumulate(cuda::Context& context, const LinearView<T>& linear, Rows<const T> x, Rows<T> y) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lazyllm::llama
