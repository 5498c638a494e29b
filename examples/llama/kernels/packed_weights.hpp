#pragma once

#include <Eigen/Core>
#include <memory>
#include <vector>

#include "examples/llama/base.hpp"

namespace llama {

/// Weights in the layout that a GEMM library likes best. All matrices are row-major without gaps.
class PackedWeights {
 public:
  virtual ~PackedWeights() = default;

  /// y = x W^T + bias or, to `accumulate`, y += x W^T + bias. x `[rows x in]` holds the weights' type, y `[rows x out]`
  /// the same or float. `rows` is at least 1.
  virtual void multiply(const void* x, Index rows, void* y, bool y_is_float, bool accumulate, int threads) const = 0;
};

/// Weights `[out x in]` and a bias `[out]` or empty, on their way to a library.
template <class T>
struct UnpackedWeights {
  Index in = 0;
  Index out = 0;
  std::vector<T> weights;
  std::vector<float> bias;
};

/// Packed for oneDNN. Returns null, and leaves `weights` alone, when it has no fast kernel for the type on this
/// processor.
template <class T>
std::unique_ptr<const PackedWeights> pack_for_onednn(const UnpackedWeights<T>& weights, int threads);

/// Takes over `weights` as they are: Eigen packs while it multiplies.
template <class T>
std::unique_ptr<const PackedWeights> pack_for_eigen(UnpackedWeights<T> weights);

}  // namespace llama
