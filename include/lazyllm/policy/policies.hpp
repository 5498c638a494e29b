#pragma once

#include <cstdint>
#include <utility>

#include "lazyllm/policy/schedule.hpp"
#include "lazyllm/policy/selection.hpp"

namespace lazyllm {

/// Prunes nothing: dense inference.
struct KeepAll {
  Selection operator()(const PrunePoint&) const { return {}; }
};

/// Keeps a fixed share of the active tokens at each pruning layer: the paper's percentile (section 3.2).
class KeepRatio {
 public:
  KeepRatio(Schedule schedule) : schedule_(std::move(schedule)) {}

  /// Throws `invalid_argument` if the schedule names a layer that the model does not have.
  Selection operator()(const PrunePoint& point) const {
    schedule_.check(point.layers);
    const double* keep = schedule_.find(point.layers_run);
    if (keep == nullptr) return {};
    return {.kind = Selection::Kind::count, .count = keep_count(*keep, point.active)};
  }

 private:
  Schedule schedule_;
};

/// The schedule drawn in the paper's figures, for a model of any depth: keeps 70 % after each 30 % of the layers.
struct PaperPolicy {
  Selection operator()(const PrunePoint& point) const {
    for (const Index tenths : {3, 6, 9}) {
      if (point.layers_run == tenths * point.layers / 10) {
        return {.kind = Selection::Kind::count, .count = keep_count(0.7, point.active)};
      }
    }
    return {};
  }
};

/// Keeps the smallest set of tokens that holds the scheduled share of the attention at each pruning layer.
class KeepTopP {
 public:
  KeepTopP(Schedule schedule) : schedule_(std::move(schedule)) {}

  /// Throws `invalid_argument` if the schedule names a layer that the model does not have.
  Selection operator()(const PrunePoint& point) const {
    schedule_.check(point.layers);
    const double* mass = schedule_.find(point.layers_run);
    if (mass == nullptr) return {};
    return {.kind = Selection::Kind::mass, .mass = *mass};
  }

 private:
  Schedule schedule_;
};

/// The paper's baseline "static token pruning": prunes in a sequence's first step only, which brings the whole prompt;
/// what was pruned is never revived.
class StaticPruning {
 public:
  StaticPruning(Schedule schedule) : first_step_(std::move(schedule)) {}

  /// Throws `invalid_argument` if the schedule names a layer that the model does not have.
  Selection operator()(const PrunePoint& point) const {
    if (point.steps == 0) return first_step_(point);
    return {.kind = Selection::Kind::unparked};
  }

 private:
  KeepRatio first_step_;
};

/// The paper's baseline "random token drop": keeps tokens drawn at random, the same ones in every step for one seed.
class RandomDrop {
 public:
  RandomDrop(Schedule schedule, std::uint64_t seed) : fraction_(std::move(schedule)), seed_(seed) {}

  /// Throws `invalid_argument` if the schedule names a layer that the model does not have.
  Selection operator()(const PrunePoint& point) const {
    Selection selection = fraction_(point);
    selection.random_seed = seed_;
    return selection;
  }

 private:
  KeepRatio fraction_;
  std::uint64_t seed_;
};

}  // namespace lazyllm
