#pragma once

#include <concepts>
#include <optional>
#include <span>
#include <type_traits>

#include "lazyllm/core/layer_plan.hpp"
#include "lazyllm/core/rows.hpp"
#include "lazyllm/importance/queries.hpp"
#include "lazyllm/kv/contiguous_keys.hpp"
#include "lazyllm/policy/selection.hpp"

/// \file
/// What an engine supplies, on one page. Types are matched by their members: nothing is inherited.

namespace lazyllm {

/// Where the keys of one sequence lie in one layer: trivially copyable, so that it can be handed to a device kernel.
/// `key` points to the elements of one head, one after the other; on CUDA they have the size of the query's. An engine
/// whose cache is laid out otherwise, or quantised, exposes scores. `ContiguousKeys` and `PagedKeys` are two.
template <class K>
concept KeyView = std::is_trivially_copyable_v<K> && requires(const K& view, Position position, Index head) {
  typename K::value_type;
  { view.key(position, head) } -> std::same_as<const typename K::value_type*>;
  { view.heads } -> std::convertible_to<Index>;
};

/// Required: the engine's attention block of one layer. `attend` reads `hidden` `[plan.rows() x width]`, computes Q, K
/// and V with RoPE at `plan.positions()`, writes K/V of these positions, which may be of earlier steps, attends over
/// `plan.keys()` under the mask, and adds the projected result to `hidden` in place. It must not read K/V of positions
/// outside `plan.keys()`: that is uninitialised memory. Where `plan.last_rows_only()`, only the last row of each
/// sequence needs its attention and result.
template <class A, class Context, class T>
concept Attention = requires(A& block, Context& context, const LayerPlan& plan) {
  block.attend(context, plan, RowsView<T>());
};

/// Required unless the engine's block is fused: norm, MLP and residual of one layer, row by row and in place, on
/// `hidden` `[any x width]`. Given apart from the attention, it is not run for pruned rows until they are revived.
template <class F, class Context, class T>
concept FeedForward = requires(F& block, Context& context, RowsView<T> hidden) {
  block.feed_forward(context, hidden);
};

/// One of two ways to have scores: the block keeps its Q of the last `attend` and can name its keys; the library
/// computes the scores from them.
template <class A>
concept ExposesQueriesAndKeys = requires(A& block, const LayerPlan& plan, Index sequence) {
  typename std::remove_cvref_t<decltype(block.queries(plan))>::value_type;
  requires std::same_as<std::remove_cvref_t<decltype(block.queries(plan))>,
                        QueryRows<typename std::remove_cvref_t<decltype(block.queries(plan))>::value_type>>;
  requires KeyView<std::remove_cvref_t<decltype(block.keys(plan, sequence))>>;
};

/// The other way: the block computes the scores of a sequence itself, right after its `attend` of the same layer, into
/// `scores` `[keys of the sequence]`, in the memory of the backend. The paper's are the attention probabilities of the
/// last row, mean over the query heads; any finite numbers will do that are higher for more important tokens and, to be
/// selected by mass, not negative. Preferred where the block offers both ways and one query is asked for.
template <class A, class Context>
concept ExposesScores = requires(A& block, Context& context, const LayerPlan& plan, Index sequence,
                                 std::span<float> out) {
  block.last_token_scores(context, plan, sequence, out);
};

/// What ranks tokens, `AttentionScore` or a type like it. `write(context, block, plan, requests)`, a static template,
/// is called after a layer's attention with a `ScoreRequest` for each sequence that needs scores and fills their
/// `scores` `[keys of the sequence]`; with tensor parallelism that is where the heads of all ranks are put together, so
/// that all keep the same tokens. `over_layers` asks for scores of every layer and for their sum, `pooling` for the
/// maximum over so many neighbours; `check` throws for options out of range.
template <class S>
concept TokenScore = requires(const S& score) {
  score.check();
  { score.over_layers } -> std::convertible_to<bool>;
  { score.pooling } -> std::convertible_to<Index>;
};

/// Storage of an Aux Cache: numbered rows of one width. `acquire` writes the rows for ascending tokens to a list as
/// long, or throws and takes none. `DenseStorage` and `PooledStorage` are two.
template <class S>
concept AuxStorage = std::movable<S> && requires(S& storage, const S& constant, typename S::context_type& context,
                                                 Positions tokens, std::span<Index> rows, Index row) {
  typename S::value_type;
  storage.reserve(context, row);
  storage.acquire(context, tokens, rows);
  storage.release(row);
  { constant.make_empty() } -> std::same_as<S>;
  { constant.rows() } -> std::same_as<RowsView<typename S::value_type>>;
  { constant.width() } -> std::same_as<Index>;
};

/// A backend: growable row buffers and the row operations of the step, found by argument-dependent lookup. Each takes
/// all sequences of a batch at once.
template <class C>
concept Backend = requires(C& context, std::span<const RowCopy<float>> copies, const QueryRows<float>& queries,
                           ScoreTask<ContiguousKeys<float>> (*task_of)(Index), std::span<float> scores,
                           std::span<const SelectionTask> tasks, KeptTokens& kept,
                           typename C::template Buffer<float>& buffer) {
  buffer.reserve(context, Index{}, Index{});
  { buffer.rows() } -> std::same_as<RowsView<float>>;
  copy_rows(context, copies);
  attention_scores(context, queries, Index{}, task_of);
  accumulate_scores(context, scores, scores, bool{});
  { select(context, tasks, kept) } -> std::same_as<std::optional<BadScore>>;
};

}  // namespace lazyllm
