#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/finite.hpp"
#include "lazyllm/engine/positions.hpp"

namespace lazyllm {

/// A pruning layer. `layers_run` 2 means between the second and the third layer, by the scores of the second, whose
/// `LayerPlan::layer()` is 1.
struct LayerKeep {
  Index layers_run = 0;  ///< at least 1, below the model's layers
  double keep = 1;       ///< keep ratio in (0, 1], or the share of the scores for top-p
};

/// The pruning layers of a policy in ascending order, each with a number in (0, 1].
class Schedule {
 public:
  /// Prunes nothing.
  Schedule() = default;
  /// A schedule of these points. Throws as the constructor from a vector.
  Schedule(std::initializer_list<LayerKeep> points) : Schedule(std::vector<LayerKeep>(points)) {}

  /// Throws `invalid_argument` if a layer is below 1 or not above the one before, or a number is outside (0, 1].
  explicit Schedule(std::vector<LayerKeep> points) : points_(std::move(points)) {
    Index previous = 0;
    for (const auto& [layer, keep] : points_) {
      if (layer <= previous) {
        detail::fail("schedule: layer ", layer, " is out of range: it must be above ", previous,
                     " (layers ascend, the first is at least 1)");
      }
      if (!(detail::is_finite(keep) && keep > 0 && keep <= 1)) {
        detail::fail("schedule: keep ", keep, " at layer ", layer, " is out of range (0, 1]");
      }
      previous = layer;
    }
  }

  /// Throws `invalid_argument` unless every pruning layer lies before the last of `layers` layers.
  void check(Index layers) const {
    if (!points_.empty() && points_.back().layers_run >= layers) {
      detail::fail("schedule: layer ", points_.back().layers_run, " is out of range 1 to ", layers - 1,
                   " of a model with ", layers, " layers");
    }
  }

  /// The number for `layers_run` layers, or null where nothing is pruned.
  const double* find(Index layers_run) const {
    for (const LayerKeep& point : points_) {
      if (point.layers_run == layers_run) return &point.keep;
    }
    return nullptr;
  }

  const std::vector<LayerKeep>& points() const { return points_; }  ///< ascending by layer

 private:
  std::vector<LayerKeep> points_;
};

}  // namespace lazyllm
