#pragma once

#include <Eigen/Core>
#include <concepts>
#include <lazyllm/lazyllm.hpp>
#include <memory>
#include <span>
#include <vector>

#include "examples/llama/checkpoint/tensor.hpp"
#include "examples/llama/library.hpp"

namespace llama {

/// How weights are held.
enum class WeightFormat {
  as_type,  ///< in the type of x
  int8      ///< whole numbers with a scale for each output; rows of x are rounded likewise, each with its own scale
};

class PackedWeights;

/// A dense layer: rows x `[rows x in]` times transposed weights `[out x in]`, plus an optional bias `[out]`, summed in
/// float. Owns the weights, packed for what multiplies them: oneDNN where the build has it and it is fast on this
/// processor, else the host's kernels for panels. One object serves several threads of the caller at a time; of those
/// that multiply in panels one has the other threads' help, and the others have none. Bits do not depend on the
/// context's number of threads, except with AMX and 16 or more of them: oneDNN may then share the sums of a few rows.
/// `T` is `float` or `Eigen::bfloat16`.
template <class T>
class HostLinear {
 public:
  /// Stacks `weights`, each `[out_i x in]`, on the out dimension: the output is theirs side by side. Needs as much
  /// memory again while it packs; the tensors are not used afterwards. `biases` is empty, or one `[out_i]` per weight.
  /// Throws `std::invalid_argument` when the shapes do not fit each other, or int8 has more inputs than exact sums
  /// allow.
  explicit HostLinear(std::span<const Tensor> weights, std::span<const Tensor> biases = {}, int threads = 1,
                      WeightFormat format = WeightFormat::as_type);

  HostLinear(HostLinear&&) noexcept;
  HostLinear& operator=(HostLinear&&) noexcept;
  ~HostLinear();

  Index in() const { return in_; }
  Index out() const { return out_; }

  /// y = x W^T + bias. `y` holds T, or float to spare logits the rounding. Any number of rows, 0 included.
  /// Throws `std::invalid_argument` unless x is `[rows x in]` and y `[rows x out]`, both without gaps between rows.
  template <class Y>
  requires std::same_as<Y, T> || std::same_as<Y, float>
  void apply(lazyllm::cpu::Context& context, RowsView<const T> x, RowsView<Y> y) const {
    check(x, y.rows, y.width, y.stride);
    multiply(x, y.data, std::same_as<Y, float>, false, context.threads());
  }

  /// y += x W^T + bias, summed before the result is rounded to T: a residual connection.
  void accumulate(lazyllm::cpu::Context& context, RowsView<const T> x, RowsView<T> y) const {
    check(x, y.rows, y.width, y.stride);
    multiply(x, y.data, std::same_as<T, float>, true, context.threads());
  }

 private:
  void check(RowsView<const T> x, Index y_rows, Index y_width, Index y_stride) const;
  void multiply(RowsView<const T> x, void* y, bool y_is_float, bool accumulate, int threads) const;

  Index in_ = 0;
  Index out_ = 0;
  std::vector<float> bias_;
  std::unique_ptr<const PackedWeights> weights_;
};

extern template class HostLinear<float>;
extern template class HostLinear<Eigen::bfloat16>;

}  // namespace llama
