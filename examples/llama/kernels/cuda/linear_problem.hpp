#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <library_types.h>

#include <compare>
#include <cstdint>
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

/// What the best algorithm of a matrix product y = x W^T + bias depends on.
struct LinearProblem {
  cudaDataType_t type = CUDA_R_32F;  ///< of the weights and x
  cudaDataType_t y_type = CUDA_R_32F;
  Index rows = 0;
  Index in = 0;
  Index out = 0;
  Index x_stride = 0;
  Index y_stride = 0;
  Index alignment = 0;  ///< of all matrices, in bytes
  bool bias = false;
  bool accumulate = false;

  auto operator<=>(const LinearProblem&) const = default;

  template <class T, class Y>
  static LinearProblem of(const LinearView<T>& linear, RowsView<const T> x, RowsView<Y> y, bool accumulate) {
    return {.type = type_of<T>,
            .y_type = type_of<Y>,
            .rows = x.rows,
            .in = linear.in,
            .out = linear.out,
            .x_stride = x.stride,
            .y_stride = y.stride,
            .alignment = alignment_of(x.data, y.data, linear.weights, linear.bias),
            .bias = linear.bias != nullptr,
            .accumulate = accumulate};
  }

 private:
  template <class T>
  static constexpr cudaDataType_t type_of = std::is_same_v<T, float>    ? CUDA_R_32F
                                            : std::is_same_v<T, __half> ? CUDA_R_16F
                                                                        : CUDA_R_16BF;

  /// The largest power of two that divides all addresses, up to 16 bytes, which is all that cuBLASLt asks for: rows
  /// must get the same algorithm wherever they lie.
  template <class... Elements>
  static Index alignment_of(const Elements*... addresses) {
    const std::uintptr_t bits = (16 | ... | reinterpret_cast<std::uintptr_t>(addresses));
    return static_cast<Index>(bits & (~bits + 1));
  }
};

}  // namespace llama
