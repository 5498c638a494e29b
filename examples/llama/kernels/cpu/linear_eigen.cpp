#include <algorithm>
#include <type_traits>
#include <utility>

#include "examples/llama/kernels/cpu/packed_weights.hpp"
#include "examples/llama/kernels/cpu/rounding.hpp"

namespace llama {
namespace {

using MatrixF = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Columns of y that are computed at once: a unit of work that does not depend on the number of threads.
constexpr Index block_columns = 128;
/// Rows of x that are held in float at once.
constexpr Index block_rows = 256;

/// Scratch memory of one thread; it keeps its size from call to call.
struct Scratch {
  MatrixF x, weights, y;
};

template <class T>
class EigenWeights final : public PackedWeights {
 public:
  explicit EigenWeights(UnpackedWeights<T> weights) : weights_(std::move(weights)) {
    if (weights_.in % Panels<T>::depth == 0) few_rows_kernel_ = panel_kernel<T>();
    if (few_rows_kernel_ != nullptr) pack();
  }

  void multiply(const void* x, Index rows, void* y, bool y_is_float, bool accumulate, int threads) const override {
    if (rows <= few_product_rows && few_rows_kernel_ != nullptr) {
      multiply_few_rows<T>(
          few_rows_kernel_, panels_, x, rows, threads,
          {y, weights_.out, weights_.bias.empty() ? nullptr : weights_.bias.data(), y_is_float, accumulate});
      return;
    }
    if (y_is_float) {
      multiply(static_cast<const T*>(x), rows, static_cast<float*>(y), accumulate, threads);
    } else {
      multiply(static_cast<const T*>(x), rows, static_cast<T*>(y), accumulate, threads);
    }
  }

 private:
  template <class Y>
  void multiply(const T* x, Index rows, Y* y, bool accumulate, [[maybe_unused]] int threads) const {
    const Index blocks = (weights_.out + block_columns - 1) / block_columns;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Index block = 0; block < blocks; ++block) {
      const Index first = block * block_columns;
      const Index columns = std::min(block_columns, weights_.out - first);
      for (Index row = 0; row < rows; row += block_rows) {
        multiply_block(x + row * weights_.in, std::min(block_rows, rows - row), y + row * weights_.out, first, columns,
                       accumulate);
      }
    }
  }

  /// Moves the weights to panels, which then serve any number of rows.
  void pack() {
    panels_.in = weights_.in;
    panels_.out = weights_.out;
    panel_memory_ = make_panel_memory<T>(panels_.elements());
    panels_.data = panel_memory_.get();
    const T* from = weights_.weights.data();
    for (Index j = 0; j < weights_.out; ++j) {
      for (Index k = 0; k < weights_.in; ++k) panel_memory_.get()[panels_.place(j, k)] = *from++;
    }
    weights_.weights = {};
  }

  /// Outputs `first` to `first + columns - 1` as floats `[columns x in]`.
  void widen_weights(Index first, Index columns, float* to) const {
    if (panel_memory_ == nullptr) {
      widen(weights_.weights.data() + first * weights_.in, columns * weights_.in, to);
      return;
    }
    constexpr Index group = Panels<T>::width * Panels<T>::depth;
    for (Index j = 0; j < columns; ++j) {
      const T* from = panels_.data + panels_.place(first + j, 0);
      for (Index k = 0; k < weights_.in; k += Panels<T>::depth, from += group, to += Panels<T>::depth) {
        widen(from, Panels<T>::depth, to);
      }
    }
  }

  /// The same where they lie like this, else in `buffer`.
  const float* widened(Index first, Index columns, MatrixF& buffer) const {
    if constexpr (std::is_same_v<T, float>) {
      if (panel_memory_ == nullptr) return weights_.weights.data() + first * weights_.in;
    }
    buffer.resize(columns, weights_.in);
    widen_weights(first, columns, buffer.data());
    return buffer.data();
  }

  template <class Y>
  void multiply_block(const T* x, Index rows, Y* y, Index first, Index columns, bool accumulate) const {
    static thread_local Scratch scratch;
    const Eigen::Map<const Matrix<T>> x_map(x, rows, weights_.in);
    scratch.y.resize(rows, columns);
    const Eigen::Map<const MatrixF> weights(widened(first, columns, scratch.weights), columns, weights_.in);
    if constexpr (std::is_same_v<T, float>) {
      scratch.y.noalias() = x_map * weights.transpose();
    } else {
      scratch.x.resize(rows, weights_.in);
      widen(x_map.data(), x_map.size(), scratch.x.data());
      scratch.y.noalias() = scratch.x * weights.transpose();
    }
    if (!weights_.bias.empty()) {
      scratch.y.rowwise() += Eigen::Map<const Eigen::RowVectorXf>(weights_.bias.data() + first, columns);
    }
    for (Index i = 0; i < rows; ++i) {
      Y* const to = y + i * weights_.out + first;
      const float* const from = scratch.y.data() + i * columns;
      for (Index j = 0; j < columns; ++j) to[j] = round_to<Y>(accumulate ? widen(to[j]) + from[j] : from[j]);
    }
  }

  UnpackedWeights<T> weights_;
  Panels<T> panels_;
  std::shared_ptr<T> panel_memory_;        ///< the weights, if there is a kernel for a few rows
  PanelKernel few_rows_kernel_ = nullptr;  ///< null: Eigen multiplies any number of rows
};

}  // namespace

template <class T>
std::unique_ptr<const PackedWeights> pack_for_eigen(UnpackedWeights<T> weights) {
  return std::make_unique<EigenWeights<T>>(std::move(weights));
}

template std::unique_ptr<const PackedWeights> pack_for_eigen(UnpackedWeights<float>);
template std::unique_ptr<const PackedWeights> pack_for_eigen(UnpackedWeights<Eigen::bfloat16>);

}  // namespace llama
