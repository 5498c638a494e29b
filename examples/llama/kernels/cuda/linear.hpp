#pragma once

#include <concepts>
#include <lazyllm/cuda_context.hpp>
#include <memory>
#include <utility>

#include "examples/llama/kernels/cuda/device_array.hpp"
#include "examples/llama/kernels/cuda/linear_problem.hpp"
#include "examples/llama/library.hpp"

namespace llama {

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

  template <class T, class Y>
  void multiply(lazyllm::cuda::Context& context, const LinearView<T>& linear, RowsView<const T> x, RowsView<Y> y,
                bool accumulate) {
    if (x.width != linear.in || y.width != linear.out || x.rows != y.rows)
      fail("Gemm: x [", x.rows, " x ", x.width, "] and y [", y.rows, " x ", y.width, "], allowed are [rows x ",
           linear.in, "] and [rows x ", linear.out, "]");
    if (linear.bias != nullptr && !std::same_as<T, Y>)
      fail("Gemm: a bias with results of another type than the weights is not supported");
    if (x.rows == 0) return;
    multiply(context, LinearProblem::of(linear, x, y, accumulate), linear.weights, linear.bias, x.data, y.data);
  }

  /// The same whatever the types, for at least one row.
  void multiply(lazyllm::cuda::Context& context, const LinearProblem& problem, const void* weights, const void* bias,
                const void* x, void* y);

  std::unique_ptr<State> state_;
};

/// A dense layer that owns its weights, with the interface of the CPU's `HostLinear`.
template <class T>
class DeviceLinear {
 public:
  /// `weights` `[out x in]`; `bias` `[out]`, or empty. Layers may share `gemm`.
  DeviceLinear(DeviceArray<T> weights, DeviceArray<T> bias, Index in, std::shared_ptr<Gemm> gemm)
      : weights_(std::move(weights)),
        bias_(std::move(bias)),
        view_{weights_.data(), bias_.data(), in, weights_.count() / in},
        gemm_(std::move(gemm)) {}

  /// With weights of the caller's, which must outlive it.
  DeviceLinear(const LinearView<T>& view, std::shared_ptr<Gemm> gemm) : view_(view), gemm_(std::move(gemm)) {}

  Index in() const { return view_.in; }
  Index out() const { return view_.out; }

  /// As `Gemm::apply`.
  template <class Y>
  void apply(lazyllm::cuda::Context& context, RowsView<const T> x, RowsView<Y> y) const {
    gemm_->apply(context, view_, x, y);
  }

  /// As `Gemm::accumulate`.
  void accumulate(lazyllm::cuda::Context& context, RowsView<const T> x, RowsView<T> y) const {
    gemm_->accumulate(context, view_, x, y);
  }

 private:
  DeviceArray<T> weights_, bias_;
  LinearView<T> view_;
  std::shared_ptr<Gemm> gemm_;
};

}  // namespace llama
