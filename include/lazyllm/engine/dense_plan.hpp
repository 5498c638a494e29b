#pragma once

#include <span>

#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/layer_plan.hpp"
#include "lazyllm/engine/plan_builder.hpp"
#include "lazyllm/engine/positions.hpp"

namespace lazyllm {

/// Plans of forward passes without pruning, for an engine's dense path: `start` once for a pass, `layer` for each
/// layer.
class DensePlan {
 public:
  /// What one sequence contributes.
  struct Extent {
    Index history = 0;     ///< tokens that have K/V in every layer
    Index new_tokens = 0;  ///< tokens to compute
    Index outputs = 1;     ///< the last rows, so many, are read after the last layer
  };

  /// Plans a pass of a batch: the new tokens are the rows, all tokens are the keys. Throws `invalid_argument` and keeps
  /// the last plan if a number is negative, a sequence too long or has more outputs than new tokens.
  void start(std::span<const Extent> extents) {
    for (const Extent& extent : extents) check(extent);
    plan_.clear();
    for (const Extent& extent : extents) {
      const Index tokens = extent.history + extent.new_tokens;
      plan_.append_rows(extent.history, tokens);
      plan_.append_keys(0, tokens);
      plan_.finish_sequence(tokens, extent.outputs);
    }
  }

  /// Plans a pass of one sequence.
  void start(Index history, Index new_tokens) {
    const Extent extent{history, new_tokens};
    start(std::span(&extent, 1));
  }

  /// The plan of one layer of `layers`; valid until the next `start`.
  LayerPlan layer(Index layer, Index layers, bool scores_wanted = false) const {
    return plan_.layer(layer, layers, scores_wanted);
  }

 private:
  static void check(const Extent& extent) {
    const auto check = [](const char* what, Index value, Index max) {
      if (value < 0 || value > max) {
        detail::fail("DensePlan::start: ", what, " ", value, " is out of range 0 to ", max);
      }
    };
    check("history", extent.history, detail::most_tokens);
    check("new_tokens", extent.new_tokens, detail::most_tokens - extent.history);
    check("outputs", extent.outputs, extent.new_tokens);
  }

  detail::PlanBuilder plan_;
};

}  // namespace lazyllm
