#pragma once

#include <algorithm>
#include <concepts>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "lazyllm/backend/operations.hpp"
#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/finite.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/policy/selection.hpp"
#include "lazyllm/score/attention_score.hpp"
#include "lazyllm/score/token_score.hpp"

namespace lazyllm {

/// Decides which tokens stay active: a policy says how many, a score says how tokens rank. Holds no state of a
/// sequence, so one pruner serves any number of them, unless its policy does not. A step prunes all its sequences at
/// once, with `BatchPruner`.
template <class Policy, class Score = AttentionScore>
class TokenPruner {
  static_assert(SelectionPolicy<Policy>,
                "lazyllm: a policy must be callable as `policy(const PrunePoint&)` while const, and return a "
                "lazyllm::Selection");
  static_assert(TokenScore<Score>,
                "lazyllm: a score must be copyable and have `last_queries` and a static template `score(context, "
                "block, plan, windows, options)`");

 public:
  using score_type = Score;  ///< how tokens rank

  /// Throws `invalid_argument` if the score's options are out of range, or an `AnyPolicy` is empty.
  explicit TokenPruner(Policy policy, Score score = {}) : policy_(std::move(policy)), score_(std::move(score)) {
    if constexpr (std::is_same_v<Policy, AnyPolicy>) {
      if (!policy_) detail::fail("TokenPruner: the policy is empty");
    }
    if constexpr (requires { score_.check(); }) score_.check();
    if (score_.last_queries < 1) {
      detail::fail("TokenPruner: last_queries ", score_.last_queries, " of a score is out of range, at least 1");
    }
    if (const Index pooling = detail::pooling(score_); pooling < 1 || pooling % 2 == 0) {
      detail::fail("TokenPruner: pooling ", pooling, " of a score is out of range: odd and at least 1");
    }
  }

  const Policy& policy() const { return policy_; }  ///< how many tokens stay
  const Score& score() const { return score_; }     ///< with its options

  /// Which tokens stay by the policy's answer, which is not checked. Throws what it throws.
  Selection::Kind kind(const PrunePoint& point) const { return answer(point).kind; }

  /// Asks the policy. A selection that would keep everything comes back as kind `all`, or where revival is limited as
  /// `top_k` of all. Throws `invalid_argument` if k is below 1, p outside (0, 1], `protect_first` or `max_revived`
  /// negative or `protect_last` below 1, and what the policy throws.
  Selection selection(const PrunePoint& point) const {
    Selection selection = answer(point);
    const auto where = [&point] { return " after " + std::to_string(point.layers_run) + " layers"; };
    using enum Selection::Kind;
    if (selection.kind == top_k && selection.k < 1) {
      detail::fail("selection: k ", selection.k, where(), " is out of range, at least 1");
    }
    if (selection.kind == top_p && !(detail::is_finite(selection.p) && selection.p > 0 && selection.p <= 1)) {
      detail::fail("selection: p ", selection.p, where(), " is out of range (0, 1]");
    }
    if (selection.protect_first < 0 || selection.protect_last < 1) {
      detail::fail("selection: protect_first ", selection.protect_first, " must be at least 0 and protect_last ",
                   selection.protect_last, " at least 1", where());
    }
    if (selection.max_revived < 0) {
      detail::fail("selection: max_revived ", selection.max_revived, where(), " is out of range, at least 0");
    }
    // p = 1 means every token, however little the last ones add to a rounded sum.
    if (selection.kind == top_p && selection.p == 1) {
      selection.kind = top_k;
      selection.k = point.active_tokens;
    }
    const bool keeps_all = selection.kind == top_k && selection.k >= point.active_tokens;
    if (keeps_all && selection.max_revived == Selection::unlimited) selection.kind = all;
    return selection;
  }

  /// What the backend is asked to select, for one sequence: `scores` of `keys`, of `tokens` tokens. The last
  /// `protect_last` tokens at least are protected.
  static SelectionTask task(const Selection& selection, Index tokens, Index protect_last, Positions keys,
                            std::span<const float> scores) {
    return {.top_p = selection.kind == Selection::Kind::top_p,
            .k = selection.k,
            .p = selection.p,
            .protect_before = selection.protect_first,
            .protect_from = tokens - std::max(selection.protect_last, protect_last),
            .protect_mask = selection.protect_mask,
            .keys = keys,
            .scores = scores};
  }

 private:
  Selection answer(const PrunePoint& point) const {
    if constexpr (SelectionPolicy<Policy>) return policy_(point);
    return {};
  }

  Policy policy_;
  Score score_;
};

/// The requirement on the pruner of a `Step`.
template <class P>
concept PrunesTokens = requires(const P& pruner, const PrunePoint& point, const Selection& selection) {
  requires TokenScore<typename P::score_type>;
  { pruner.score() } -> std::same_as<const typename P::score_type&>;
  { pruner.kind(point) } -> std::same_as<Selection::Kind>;
  { pruner.selection(point) } -> std::same_as<Selection>;
  { P::task(selection, Index{}, Index{}, Positions(), std::span<const float>()) } -> std::same_as<SelectionTask>;
};

}  // namespace lazyllm
