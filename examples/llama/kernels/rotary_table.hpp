#pragma once

#include <vector>

#include "examples/llama/base.hpp"
#include "examples/llama/checkpoint/model_config.hpp"

namespace llama {

/// The angles of a `RotaryTable`, in the memory of the kernels that read them. Trivially copyable; nothing is owned.
struct RotaryView {
  const float* angles = nullptr;  ///< `[positions x (cosines, sines)]`, each `[head_dim / 2]`
  Index positions = 0;
  Index head_dim = 0;
  bool interleaved = false;  ///< rotates the elements (2i, 2i+1) of a head, else (i, i + head_dim / 2)
};

/// Cosines and sines of the rotary angles, computed once for each position.
class RotaryTable {
 public:
  /// `head_dim` is even; `interleaved` rotates the elements (2i, 2i+1) of a head, else (i, i + head_dim / 2).
  RotaryTable(Index head_dim, double theta, const RopeScaling& scaling, bool interleaved);

  /// Makes the positions below `positions` available. Not to be called while others read the table.
  void reserve(Index positions);

  /// Of the positions that are available, until the next `reserve`.
  RotaryView view() const { return {angles_.data(), positions_, head_dim(), interleaved_}; }

 private:
  Index head_dim() const { return 2 * static_cast<Index>(frequencies_.size()); }

  std::vector<double> frequencies_;  // radians per position
  std::vector<float> angles_;        // [positions x (cosines, sines)]
  Index positions_ = 0;
  bool interleaved_;
};

}  // namespace llama
