#pragma once

#include <lazyllm/cuda.cuh>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <library_types.h>

#include <compare>
#include <concepts>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "examples/llama/library.hpp"

namespace llama {

/// A dense layer on the device: weights `[out x in]` row-major and a bias `[out]`, or null. Nothing is owned.
template <class T>
struct LinearView {
  const T* weights = nullptr;
  const T* bias = nullptr;
  Index in = 0;
  Index out = 0;
};

/// Matrix products on the device, by cuBLASLt: inputs of `float`, `__half` or `__nv_bfloat16`, sums in float. Remembers
/// the best algorithm for each shape that it has met. Serves one thread of the caller at a time; all work is enqueued
/// on the context's stream and takes scratch memory of the context. `x` `[rows x in]` and `y` `[rows x out]` may have
/// gaps between rows. All throw `std::invalid_argument` when the shapes do not fit each other, `cuda_error` when a
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
  void apply(lazyllm::cuda::Context& context, const LinearView<T>& linear, RowsView<const T> x, RowsView<Y> y) {
    multiply(context, linear, x, y, false);
  }

  /// y += x W^T + bias, summed before the result is rounded to T: a residual connection.
  template <class T>
  void accumulate(lazyllm::cuda::Context& context, const LinearView<T>& linear, RowsView<const T> x, RowsView<T> y) {
    multiply(context, linear, x, y, true);
  }

 private:
  struct State;

  /// What the best algorithm depends on.
  struct Problem {
    cudaDataType_t type;
    cudaDataType_t y_type;
    Index rows, in, out, x_stride, y_stride;
    Index alignment;  // of all matrices, in bytes
    bool bias;
    bool accumulate;

    auto operator<=>(const Problem&) const = default;
  };

  template <class T>
  static constexpr cudaDataType_t type_of = std::is_same_v<T, float>    ? CUDA_R_32F
                                            : std::is_same_v<T, __half> ? CUDA_R_16F
                                                                        : CUDA_R_16BF;

  /// The largest power of two up to 256 that divides all addresses.
  template <class... Elements>
  static Index alignment_of(const Elements*... addresses) {
    const std::uintptr_t bits = (256 | ... | reinterpret_cast<std::uintptr_t>(addresses));
    return static_cast<Index>(bits & (~bits + 1));
  }

  template <class T, class Y>
  void multiply(lazyllm::cuda::Context& context, const LinearView<T>& linear, RowsView<const T> x, RowsView<Y> y,
                bool accumulate) {
    if (x.width != linear.in || y.width != linear.out || x.rows != y.rows)
      fail("Gemm: x [", x.rows, " x ", x.width, "] and y [", y.rows, " x ", y.width, "], allowed are [rows x ",
           linear.in, "] and [rows x ", linear.out, "]");
    if (linear.bias != nullptr && !std::same_as<T, Y>)
      fail("Gemm: a bias with results of another type than the weights is not supported");
    if (x.rows == 0) return;
    const Index alignment = alignment_of(x.data, y.data, linear.weights, linear.bias);
    multiply(context,
             {type_of<T>, type_of<Y>, x.rows, linear.in, linear.out, x.stride, y.stride, alignment,
              linear.bias != nullptr, accumulate},
             linear.weights, linear.bias, x.data, y.data);
  }

  /// The same whatever the types, for at least one row.
  void multiply(lazyllm::cuda::Context& context, const Problem& problem, const void* weights, const void* bias,
                const void* x, void* y);

  std::unique_ptr<State> state_;
};

}  // namespace llama
