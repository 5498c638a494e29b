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
  explicit EigenWeights(UnpackedWeights<T> weights) : weights_(std::move(weights)) {}

  void multiply(const void* x, Index rows, const Output& output, [[maybe_unused]] int threads) const override {
    const Index blocks = (weights_.out + block_columns - 1) / block_columns;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Index block = 0; block < blocks; ++block) {
      const Index first = block * block_columns;
      const Index columns = std::min(block_columns, weights_.out - first);
      for (Index row = 0; row < rows; row += block_rows) {
        multiply_block(static_cast<const T*>(x), row, std::min(block_rows, rows - row), first, columns, output);
      }
    }
  }

 private:
  /// Outputs `first` to `first + columns - 1` as floats `[columns x in]`, where they lie or in `buffer`.
  const float* widened(Index first, Index columns, MatrixF& buffer) const {
    const T* const from = weights_.weights.data() + first * weights_.in;
    if constexpr (std::is_same_v<T, float>) {
      return from;
    } else {
      buffer.resize(columns, weights_.in);
      widen(from, columns * weights_.in, buffer.data());
      return buffer.data();
    }
  }

  void multiply_block(const T* x, Index row, Index rows, Index first, Index columns, const Output& output) const {
    static thread_local Scratch scratch;
    const Eigen::Map<const Matrix<T>> x_map(x + row * weights_.in, rows, weights_.in);
    scratch.y.resize(rows, columns);
    const Eigen::Map<const MatrixF> weights(widened(first, columns, scratch.weights), columns, weights_.in);
    if constexpr (std::is_same_v<T, float>) {
      scratch.y.noalias() = x_map * weights.transpose();
    } else {
      scratch.x.resize(rows, weights_.in);
      widen(x_map.data(), x_map.size(), scratch.x.data());
      scratch.y.noalias() = scratch.x * weights.transpose();
    }
    output.write<T>(scratch.y.data(), columns, row, rows, first, columns);
  }

  UnpackedWeights<T> weights_;
};

}  // namespace

template <class T>
std::unique_ptr<const PackedWeights> pack_for_eigen(UnpackedWeights<T> weights) {
  return std::make_unique<EigenWeights<T>>(std::move(weights));
}

template std::unique_ptr<const PackedWeights> pack_for_eigen(UnpackedWeights<float>);
template std::unique_ptr<const PackedWeights> pack_for_eigen(UnpackedWeights<Eigen::bfloat16>);

}  // namespace llama
