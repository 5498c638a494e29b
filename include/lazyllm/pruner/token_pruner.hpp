#pragma once

#include <utility>

#include "lazyllm/core/positions.hpp"
#include "lazyllm/error.hpp"
#include "lazyllm/importance/attention_score.hpp"
#include "lazyllm/policy/selection.hpp"

namespace lazyllm {

/// Decides which tokens stay active: a policy says how many, a score says how tokens rank. Holds no state of a
/// sequence, so one pruner serves any number of them, unless its policy does not.
template <SelectionPolicy Policy, TokenScore Score = AttentionScore>
class TokenPruner {
 public:
  /// Throws `invalid_argument` if the score's options are out of range.
  explicit TokenPruner(Policy policy, Score score = {}) : policy_(std::move(policy)), score_(std::move(score)) {
    score_.check();
  }

  const Score& score() const { return score_; }

  /// Asks the policy. A selection that would keep everything comes back as kind `all`. Throws `invalid_argument` if a
  /// count is below 1, a mass outside (0, 1], `protect_first` negative or `protect_last` below 1.
  Selection selection(const PrunePoint& point) const {
    Selection selection = policy_(point);
    using enum Selection::Kind;
    if (selection.kind == count && selection.count < 1) {
      detail::fail("selection: count ", selection.count, " after ", point.layers_run,
                   " layers is out of range, at least 1");
    }
    if (selection.kind == mass && !(selection.mass > 0 && selection.mass <= 1)) {
      detail::fail("selection: mass ", selection.mass, " after ", point.layers_run, " layers is out of range (0, 1]");
    }
    if (selection.protect_first < 0 || selection.protect_last < 1) {
      detail::fail("selection: protect_first ", selection.protect_first, " must be at least 0 and protect_last ",
                   selection.protect_last, " at least 1");
    }
    // A mass of 1 means every token, however little the last ones add to a rounded sum.
    if ((selection.kind == count && selection.count >= point.active) ||
        (selection.kind == mass && selection.mass == 1)) {
      selection.kind = all;
    }
    return selection;
  }

 private:
  Policy policy_;
  Score score_;
};

}  // namespace lazyllm
