#pragma once

#include <utility>

#include "lazyllm/policy/schedule.hpp"
#include "lazyllm/policy/selection.hpp"

namespace lazyllm {

/// Prunes nothing: dense inference.
struct KeepAll {
  /// Keeps all tokens, at every point.
  Selection operator()(const PrunePoint&) const { return {}; }
};

/// Keeps a fixed ratio of the active tokens at each pruning layer: the paper's percentile (section 3.2).
class KeepRatio {
 public:
  /// The schedule's numbers are keep ratios.
  explicit KeepRatio(Schedule schedule) : schedule_(std::move(schedule)) {}

  /// Throws `invalid_argument` if the schedule names a layer that the model does not have.
  Selection operator()(const PrunePoint& point) const {
    schedule_.check(point.layers);
    const double* keep = schedule_.find(point.layers_run);
    if (keep == nullptr) return {};
    return {.kind = Selection::Kind::top_k, .k = keep_count(*keep, point.active_tokens)};
  }

 private:
  Schedule schedule_;
};

/// The schedule drawn in the paper's figures, for a model of any depth: keeps 70 % after each 30 % of the layers.
struct PaperPolicy {
  /// Keeps 70 % of the active tokens at the three points.
  Selection operator()(const PrunePoint& point) const {
    for (const Index tenths : {3, 6, 9}) {
      if (point.layers_run == tenths * point.layers / 10) {
        return {.kind = Selection::Kind::top_k, .k = keep_count(0.7, point.active_tokens)};
      }
    }
    return {};
  }
};

/// Keeps the smallest set of tokens that holds the scheduled share of the scores at each pruning layer (top-p).
class KeepTopP {
 public:
  /// The schedule's numbers are shares of the scores.
  explicit KeepTopP(Schedule schedule) : schedule_(std::move(schedule)) {}

  /// Throws `invalid_argument` if the schedule names a layer that the model does not have.
  Selection operator()(const PrunePoint& point) const {
    schedule_.check(point.layers);
    const double* p = schedule_.find(point.layers_run);
    if (p == nullptr) return {};
    return {.kind = Selection::Kind::top_p, .p = *p};
  }

 private:
  Schedule schedule_;
};

/// The paper's baseline "static token pruning" (section 4): prunes in a sequence's first step only, which brings the
/// whole prompt. What was pruned is never revived. Tokens of `append_computed` before that step have gone through all
/// layers, so nothing of them is parked: they are pruned in that step alone, and active again in the next.
class StaticPruning {
 public:
  /// The schedule's numbers are keep ratios.
  explicit StaticPruning(Schedule schedule) : first_step_(std::move(schedule)) {}

  /// Throws `invalid_argument` if the schedule names a layer that the model does not have.
  Selection operator()(const PrunePoint& point) const {
    if (point.steps == 0) return first_step_(point);
    return {.kind = Selection::Kind::not_pruned_before};
  }

 private:
  KeepRatio first_step_;
};

}  // namespace lazyllm
