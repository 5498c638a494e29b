#pragma once

#include <vector>

#include "examples/llama/base.hpp"
#include "examples/llama/checkpoint/model_config.hpp"

namespace llama {

/// Cosines and sines of the rotary angles, computed once for each position.
class RotaryTable {
 public:
  /// `head_dim` is even; `interleaved` rotates the elements (2i, 2i+1) of a head, else (i, i + head_dim / 2).
  RotaryTable(Index head_dim, double theta, const RopeScaling& scaling, bool interleaved);

  /// Makes the positions below `positions` available. Not to be called while others read the table.
  void reserve(Index positions);

  Index positions() const { return positions_; }
  Index head_dim() const { return 2 * static_cast<Index>(frequencies_.size()); }
  bool interleaved() const { return interleaved_; }

  const float* cosines(Index position) const { return angles_.data() + position * head_dim(); }  ///< `[head_dim/2]`
  const float* sines(Index position) const { return cosines(position) + head_dim() / 2; }        ///< `[head_dim/2]`

 private:
  std::vector<double> frequencies_;  // radians per position
  std::vector<float> angles_;        // [positions x (cosines, sines)]
  Index positions_ = 0;
  bool interleaved_;
};

}  // namespace llama
