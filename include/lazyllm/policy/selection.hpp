#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "lazyllm/core/positions.hpp"

namespace lazyllm {

/// Where in a step a policy is asked: between two layers, for one sequence.
struct PrunePoint {
  Index layers_run = 0;  ///< layers that have run in this step, 1 … layers - 1
  Index layers = 0;      ///< layers of the model
  Index active = 0;      ///< tokens active in the layer that ran last
  Index tokens = 0;      ///< tokens of the sequence so far, prompt and generated
  Index new_tokens = 0;  ///< tokens that this step brought: one in a decode step, as a rule more in a prefill
  Index steps = 0;       ///< steps that the sequence had finished before this one
};

/// A policy's answer: which of the active tokens stay active in the next layer.
struct Selection {
  enum class Kind : std::uint8_t {
    all,      ///< every active token
    count,    ///< the `count` highest scores, equal scores to the smaller position
    mass,     ///< the fewest highest scores that hold the share `mass` of all active tokens' scores
    unparked  ///< the tokens that were not pruned here in an earlier step: what was pruned once stays pruned
  };

  Kind kind = Kind::all;
  Index count = 0;
  double mass = 1;
  Index protect_first = 0;  ///< by count or mass, positions below this are always kept; they count as kept
  Index protect_last = 1;   ///< so are the last ones of the sequence, at least the last
  std::span<const std::uint8_t> protect_mask{};   ///< so is position p where entry p is not 0; shorter than it may be
  std::optional<std::uint64_t> random_seed = {};  ///< `count` draws at random with this seed instead of by score

  /// Whether position `p` of a sequence of `tokens` tokens is kept whatever its score.
  bool protects(Position p, Index tokens) const {
    return p < protect_first || p >= tokens - protect_last ||
           (static_cast<std::size_t>(p) < protect_mask.size() && protect_mask[static_cast<std::size_t>(p)] != 0);
  }
};

/// What one sequence of a batch asks of a backend's `select`.
struct SelectionTask {
  Selection selection;        ///< of kind `count` or `mass`
  Index tokens = 0;           ///< tokens of the sequence so far
  Positions active{};         ///< `[keys]` positions of the active tokens, ascending
  std::span<float> scores{};  ///< `[keys]` in the backend's memory, finite; used as scratch memory
  Index pooling = 1;          ///< first gives a key the highest score among so many (odd) active keys around it
};

/// A backend's answer to several tasks.
struct KeptTokens {
  std::vector<Index> indices;       ///< for each task the ascending indices into its `active`, one task after the other
  std::vector<Index> indptr = {0};  ///< `[tasks + 1]` where each task's part of `indices` begins

  std::span<const Index> of(std::size_t task) const {
    return std::span(indices).subspan(static_cast<std::size_t>(indptr[task]),
                                      static_cast<std::size_t>(indptr[task + 1] - indptr[task]));
  }
};

/// A score that is not a finite number.
struct BadScore {
  std::size_t task = 0;
  Index index = 0;  ///< into the task's `active`; the first one
};

/// A policy is any callable from a `PrunePoint` to a `Selection`: the types of this folder, a lambda, or a
/// `std::function` where the choice is made at run time.
template <class Policy>
concept SelectionPolicy = requires(const Policy& policy, const PrunePoint& point) {
  { policy(point) } -> std::convertible_to<Selection>;
};

/// A policy chosen at run time. All sequences of a step share one type of pruner: where they have different policies,
/// it is `TokenPruner<AnyPolicy>`.
using AnyPolicy = std::function<Selection(const PrunePoint&)>;

/// Tokens that a keep fraction `fraction` in (0, 1] leaves of `active` >= 1: ceil(fraction * active), at least one.
inline Index keep_count(double fraction, Index active) {
  // The small term undoes the rounding of fractions such as 0.7 that binary numbers cannot hold.
  const auto count = static_cast<Index>(std::ceil(fraction * static_cast<double>(active) - 1e-9));
  return std::clamp<Index>(count, 1, active);
}

}  // namespace lazyllm
