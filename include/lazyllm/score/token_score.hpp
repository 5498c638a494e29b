#pragma once

#include <algorithm>
#include <concepts>
#include <span>

#include "lazyllm/backend/operations.hpp"
#include "lazyllm/engine/contiguous_keys.hpp"
#include "lazyllm/engine/layer_plan.hpp"
#include "lazyllm/engine/queries.hpp"
#include "lazyllm/engine/rows.hpp"

namespace lazyllm {

namespace detail {

/// Stand-ins to check the form of a type's `score` function: a backend and a block that have everything, so that it may
/// ask for anything. Nothing of them is ever run.
struct AnyContext {
  template <class T>
  struct Buffer {
    void reserve(AnyContext&, Index, Index) {}
    void check(const AnyContext&) const {}
    RowsView<T> rows() const { return {}; }
  };
};
template <class T>
void copy_rows(AnyContext&, std::span<const RowCopy<T>>) {}
template <class T, class TaskOf>
void attention_scores(AnyContext&, const QueryRows<T>&, Index, const TaskOf&) {}
inline void accumulate_scores(AnyContext&, std::span<float>, std::span<float>, bool) {}
inline void pool_scores(AnyContext&, std::span<const PoolTask>) {}
inline void select_tokens(AnyContext&, std::span<const SelectionTask>, KeptTokens&) {}
inline void copy_to_host(AnyContext&, RowsView<const float>, float*) {}
inline void copy_from_host(AnyContext&, const float*, RowsView<float>) {}
static_assert(Backend<AnyContext>);

struct AnyBlock {
  QueryRows<float> queries(const LayerPlan&) { return {}; }
  ContiguousKeys<float> key_view(const LayerPlan&, Index) { return {}; }
  void attend(AnyContext&, const LayerPlan&, RowsView<float>) {}
  void token_scores(AnyContext&, const LayerPlan&, std::span<const ScoreWindow>) {}
};

}  // namespace detail

/// What ranks tokens: `AttentionScore`, or a type of the user's own, which derives from nothing.
/// - Required: the static template `score(context, block, plan, windows, options)`, called after a layer's attention.
///   It fills the scores of the `windows`, one for each sequence that needs them: higher for more important tokens.
///   `options[i]` is the score of the sequence of `windows[i]`. `score_by_attention` fills them from attention
///   probabilities. With tensor parallelism this is where the scores of all ranks are added, so that all ranks keep the
///   same tokens.
/// - Required: `last_queries`, how many of the sequence's last positions score, at least 1.
/// - Optional: `over_heads` and `over_rows`, how the scores of the query heads and of the window's rows become one;
///   without them, the mean. `over_layers`, whether the scores of all layers so far are summed. `pooling`, odd: each
///   key gets the highest score among the `pooling` keys around it. `check()` throws `invalid_argument` for options out
///   of range.
template <class S>
concept TokenScore = std::copyable<S> &&
    requires(const S& score, detail::AnyContext& context, detail::AnyBlock& block, const LayerPlan& plan,
             std::span<const ScoreWindow> windows, std::span<const S* const> options) {
  S::score(context, block, plan, windows, options);
  { score.last_queries } -> std::convertible_to<Index>;
};

namespace detail {

template <class Score>
bool over_layers(const Score& score) {
  if constexpr (requires { score.over_layers; }) return score.over_layers;
  return false;
}

template <class Score>
Index pooling(const Score& score) {
  if constexpr (requires { score.pooling; }) return score.pooling;
  return 1;
}

/// The window of a sequence: its rows among the last `last_queries` positions, as far as these are `new_tokens`.
template <class Score>
ScoreWindow score_window(const Score& score, const LayerPlan& plan, Index sequence, Index new_tokens,
                         std::span<float> scores = {}) {
  const SequencePlan part = plan.sequence(sequence);
  const Index first_position = part.tokens - std::min<Index>(score.last_queries, new_tokens);
  const auto first = std::ranges::lower_bound(part.positions, first_position);
  ScoreWindow window{.sequence = sequence,
                     .first_row = part.first_row + (first - part.positions.begin()),
                     .rows = part.positions.end() - first,
                     .scores = scores};
  if constexpr (requires { window.over_heads = score.over_heads; }) window.over_heads = score.over_heads;
  if constexpr (requires { window.over_rows = score.over_rows; }) window.over_rows = score.over_rows;
  return window;
}

}  // namespace detail
}  // namespace lazyllm
