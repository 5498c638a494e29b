#pragma once

#include <Eigen/Core>
#include <memory>
#include <vector>

#include "examples/llama/base.hpp"
#include "examples/llama/kernels/cpu/panels.hpp"
#include "examples/llama/kernels/cpu/rounding.hpp"

namespace llama {

/// Where products go, y `[rows x width]` without gaps: y = products + bias or, to `accumulate`, y += products + bias,
/// rounded once.
struct Output {
  void* y;  ///< of the weights' type or, if it `is_float`, of float
  Index width;
  const float* bias;  ///< `[width]`; null: none
  bool is_float, accumulate;

  /// Takes `count` sums of each of `rows` rows, `stride` apart, that begin with row `row` and output `first`.
  template <class T>
  void write(const float* sums, Index stride, Index row, Index rows, Index first, Index count) const {
    if (is_float) {
      write_as(static_cast<float*>(y) + row * width, sums, stride, rows, first, count);
    } else {
      write_as(static_cast<T*>(y) + row * width, sums, stride, rows, first, count);
    }
  }

 private:
  template <class Y>
  void write_as(Y* to_first, const float* sums, Index stride, Index rows, Index first, Index count) const {
    for (Index i = 0; i < rows; ++i) {
      Y* const to = to_first + i * width + first;
      const float* const from = sums + i * stride;
      for (Index j = 0; j < count; ++j) {
        const float sum = bias == nullptr ? from[j] : from[j] + bias[first + j];
        to[j] = round_to<Y>(accumulate ? widen(to[j]) + sum : sum);
      }
    }
  }
};

/// Weights in the layout that a GEMM library likes best.
class PackedWeights {
 public:
  virtual ~PackedWeights() = default;

  /// Multiplies x `[rows x in]` of the weights' type, without gaps. `rows` is at least 1.
  virtual void multiply(const void* x, Index rows, const Output& output, int threads) const = 0;
};

/// Weights `[out x in]`, row-major without gaps, on their way to a library.
template <class T>
struct UnpackedWeights {
  Index in = 0;
  Index out = 0;
  std::vector<T> weights;
};

/// Packed for oneDNN. Returns null, and leaves `weights` alone, when it has no fast kernel for the type on this
/// processor.
template <class T>
std::unique_ptr<const PackedWeights> pack_for_onednn(const UnpackedWeights<T>& weights, int threads);

/// In panels, for `panel_kernel`.
template <class T>
std::unique_ptr<const PackedWeights> pack_in_panels(const UnpackedWeights<T>& weights, int threads);

/// Rounds weights to int8, a scale for each output. Throws `std::invalid_argument` for more inputs than exact sums
/// allow.
template <class T>
std::unique_ptr<const PackedWeights> pack_int8(const UnpackedWeights<T>& weights, int threads);

#ifdef LLAMA_HAS_ONEDNN
/// Whether `multiply_int8` is the fastest for many rows: with AMX, if oneDNN has such a kernel.
bool onednn_multiplies_int8(int threads);
/// The sums `[rows x out]` of many rows `x`, `x_stride` apart, by oneDNN. They are exact with VNNI or AMX.
void multiply_int8(const Panels<std::int8_t>& weights, const std::uint8_t* x, Index x_stride, Index rows,
                   std::int32_t* sums, int threads);
#endif

/// Multiplies rows `x` of the weights' type. They follow each other without gaps, but for what fills up a row's last
/// group.
template <class T>
void multiply_panels(PanelKernel kernel, const Panels<T>& weights, const T* x, Index rows, const Output& output,
                     int threads) {
  constexpr Index group_bytes = 4;
  multiply_panels(kernel, weights, reinterpret_cast<const std::byte*>(x), weights.groups() * group_bytes, rows, threads,
                  [&](Index row, Index count, Index first, Index outputs, const float* sums) {
                    output.write<T>(sums, Panels<T>::width, row, count, first, outputs);
                  });
}

}  // namespace llama
