#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/policy/selection.hpp"

namespace lazyllm {

/// Always keeps the first `count` positions: models that use early tokens as attention sinks break without them.
template <SelectionPolicy Policy>
struct ProtectFirst {
  Policy policy;    ///< whose answer is edited
  Index count = 0;  ///< at least 0

  /// The edited answer.
  Selection operator()(const PrunePoint& point) const {
    Selection selection = policy(point);
    selection.protect_first = count < 0 ? count : std::max(selection.protect_first, count);  // the pruner refuses it
    return selection;
  }
};

/// Always keeps the last `count` positions of the sequence, for example the question at a prompt's end.
template <SelectionPolicy Policy>
struct ProtectLast {
  Policy policy;    ///< whose answer is edited
  Index count = 0;  ///< at least 0

  /// The edited answer.
  Selection operator()(const PrunePoint& point) const {
    Selection selection = policy(point);
    selection.protect_last = count < 0 ? count : std::max(selection.protect_last, count);  // the pruner refuses it
    return selection;
  }
};

/// Always keeps the positions whose entry in `mask` is not 0: those of one prompt, so each needs a pruner of its own.
/// The mask is the caller's and must outlive the pruner; positions beyond its end are not protected. It takes the place
/// of a mask further in.
template <SelectionPolicy Policy>
struct ProtectMask {
  Policy policy;                       ///< whose answer is edited
  std::span<const std::uint8_t> mask;  ///< `[positions]`

  /// The edited answer.
  Selection operator()(const PrunePoint& point) const {
    Selection selection = policy(point);
    selection.protect_mask = mask;
    return selection;
  }
};

/// Revives at most `count` tokens at each pruning layer of a step, the highest-scored ones, so that a decode step or a
/// short second prompt does not compute hundreds of rows. Without it, all selected tokens are revived, as in the paper.
/// Acts only where the policy ranks tokens (`top_k`, `top_p`), so not in decode steps of `PrefillOnly`. Protected
/// tokens are always revived, and count among them. The revived rows of all pruning layers so far run together.
template <SelectionPolicy Policy>
struct ReviveAtMost {
  Policy policy;    ///< whose answer is edited
  Index count = 0;  ///< at least 0

  /// The edited answer.
  Selection operator()(const PrunePoint& point) const {
    Selection selection = policy(point);
    selection.max_revived = std::min(selection.max_revived, count);
    return selection;
  }
};

/// Prunes in decode steps only what costs work: all active tokens that have been computed so far stay. Of the others,
/// the `revived` highest-scored ones are revived at each pruning layer. The new token then sees all K/V that is there.
/// In decode steps its numbers and the continuations take the place of what `policy` answers as `max_revived` and
/// `protect`. So `ReviveAtMost` within it limits the steps of prompts, around it all steps.
template <SelectionPolicy Policy>
struct KeepComputed {
  Policy policy;      ///< whose answer is edited
  Index revived = 0;  ///< at least 0
  /// Takes the place of `revived` in the first decode step after a prompt, which misses most. At least 0.
  std::optional<Index> first_revived = {};
  /// Of the entry's continuations the first so many are revived in any case; they count among the others. At least 0.
  Index continuations = 0;
  /// Pruning layers after fewer layers than this revive only continuations, and need no scores. Tokens that are parked
  /// deep have passed more cuts, and have fewer layers to run, so the last pruning layer is a good choice. It does not
  /// act in the first decode step where `first_revived` is set.
  Index revive_from = 0;

  /// The edited answer.
  Selection operator()(const PrunePoint& point) const {
    Selection selection = policy(point);
    const auto check = [](const char* name, Index count) {
      if (count < 0) detail::fail("KeepComputed: ", name, " ", count, " is out of range, at least 0");
    };
    check("revived", revived);
    check("first_revived", first_revived.value_or(0));
    check("continuations", continuations);
    check("revive_from", revive_from);
    if (!point.decodes() || !selection.ranks()) return selection;
    const bool is_first = point.decoded_tokens == 0 && first_revived;
    const bool ranks = is_first || point.layers_run >= revive_from;
    selection.kind = ranks ? Selection::Kind::top_k : Selection::Kind::not_pruned_before;
    selection.k = point.active_tokens;
    selection.max_revived = is_first ? *first_revived : revived;
    const Index first = std::min<Index>(continuations, std::ssize(point.continuations));
    selection.protect = point.continuations.first(detail::to_size(first));
    return selection;
  }
};

/// Prunes nothing while a sequence has fewer than `tokens` tokens. What a longer one has parked before `truncate` made
/// it short stays parked in decode steps.
template <SelectionPolicy Policy>
struct MinTokens {
  Policy policy;     ///< whose answer is edited
  Index tokens = 0;  ///< at least 0

  /// The edited answer.
  Selection operator()(const PrunePoint& point) const {
    if (tokens < 0) detail::fail("MinTokens: tokens ", tokens, " is out of range, at least 0");
    const Selection selection = policy(point);
    if (point.tokens >= tokens || selection.kind == Selection::Kind::all) return selection;
    return {.kind = point.decodes() ? Selection::Kind::not_pruned_before : Selection::Kind::all};
  }
};

/// Prunes in prompts only. The first decode step revives everything, so that the first token comes
/// early and the later ones come from all tokens.
template <SelectionPolicy Policy>
struct PrefillOnly {
  Policy policy;  ///< whose answer is edited

  /// The edited answer.
  Selection operator()(const PrunePoint& point) const { return point.decodes() ? Selection{} : policy(point); }
};

/// \cond
// Compilers before C++20's deduction for aggregates (clang below 17) need these.
template <class Policy>
ProtectFirst(Policy, Index) -> ProtectFirst<Policy>;
template <class Policy>
ProtectLast(Policy, Index) -> ProtectLast<Policy>;
template <class Policy>
ProtectMask(Policy, std::span<const std::uint8_t>) -> ProtectMask<Policy>;
template <class Policy>
ReviveAtMost(Policy, Index) -> ReviveAtMost<Policy>;
template <class Policy>
KeepComputed(Policy, Index) -> KeepComputed<Policy>;
template <class Policy>
KeepComputed(Policy, Index, Index) -> KeepComputed<Policy>;
template <class Policy>
KeepComputed(Policy, Index, std::optional<Index>, Index) -> KeepComputed<Policy>;
template <class Policy>
KeepComputed(Policy, Index, std::optional<Index>, Index, Index) -> KeepComputed<Policy>;
template <class Policy>
MinTokens(Policy, Index) -> MinTokens<Policy>;
template <class Policy>
PrefillOnly(Policy) -> PrefillOnly<Policy>;
/// \endcond

}  // namespace lazyllm
