#pragma once

#include <concepts>
#include <span>
#include <type_traits>

#include "lazyllm/engine/element.hpp"
#include "lazyllm/engine/layer_plan.hpp"
#include "lazyllm/engine/queries.hpp"
#include "lazyllm/engine/rows.hpp"

/// \file
/// What an engine supplies, on one page. Types are matched by their members: nothing is inherited. What a user may
/// supply beside an engine stands where it is used: `SelectionPolicy` in policy/, `TokenScore` in score/.
///
/// On CUDA, blocks enqueue their work on `context.stream()` and need not wait for it. `hidden`, Q, K and page tables
/// are device memory and stay valid until that work has run; the lists of a plan are host memory.

namespace lazyllm {

/// Required: the engine's attention block of one layer. `attend` reads `hidden` `[plan.rows() x hidden_size]`, computes
/// Q, K and V with RoPE at `plan.positions()`, writes K/V at these positions, which may be of earlier steps, attends
/// over `plan.keys()` under the mask, and adds the projected result to `hidden` in place. It must not read K/V of
/// positions outside `plan.keys()`: that is uninitialised memory. Where `plan.outputs_only()`, only the last
/// `plan.outputs()[s]` rows of sequence s need their attention and result. A sequence may have no rows. Optional:
/// `layer()`, which layer the block is, from 0; `LazyDecoderLayer` then refuses layers that run in another order.
template <class A, class Context, class T>
concept Attention = requires(A& block, Context& context, const LayerPlan& plan, RowsView<T> hidden) {
  block.attend(context, plan, RowsView<T>(hidden));
};

/// Required unless the engine's block is fused: norm, MLP and residual of one layer, row by row and in place, on
/// `hidden` `[any x hidden_size]`. It is not run for pruned rows until they are revived.
template <class F, class Context, class T>
concept FeedForward = requires(F& block, Context& context, RowsView<T> hidden) {
  block.feed_forward(context, RowsView<T>(hidden));
};

/// The same for blocks that differ by request, such as one LoRA adapter for each: the rows of sequence s, which stand
/// in the order of the step's entries, are `row_indptr[s]` to `row_indptr[s + 1]`. `row_indptr` `[sequences + 1]` is
/// host memory, valid during the call. Preferred where a block offers both.
template <class F, class Context, class T>
concept FeedForwardPerSequence = requires(F& block, Context& context, std::span<const Index> row_indptr,
                                          RowsView<T> hidden) {
  block.feed_forward(context, std::span<const Index>(row_indptr), RowsView<T>(hidden));
};

/// Where K of one sequence lies in one layer: `key(position, head)` points to the `head_dim` elements of one head of K,
/// one after the other. Query head h reads head h / (heads / kv_heads). Trivially copyable, so that it can be handed to
/// a device kernel; on CUDA its elements have the size of the query's. Models: `ContiguousKeys`, `PagedKeys`. An engine
/// whose K is laid out otherwise, or quantised, computes scores itself.
template <class K>
concept KeyView = std::is_trivially_copyable_v<K> && requires(const K& view, Position position, Index head) {
  typename K::value_type;
  requires Element<typename K::value_type>;
  { view.key(position, head) } -> std::same_as<const typename K::value_type*>;
  { view.kv_heads } -> std::convertible_to<Index>;
};

/// One of two ways to have scores: `queries(plan)` gives Q of the last `attend`, `key_view(plan, sequence)` K of a
/// sequence in this layer; the library computes the scores: softmax of the scaled products of Q with all keys that a
/// row sees. It knows no window, bias, cap of the logits or sink weights. Scores are asked for right after `attend` of
/// the same layer, so all layers may share one buffer of Q. Optional in both ways: a member function `max_queries()`,
/// of how many of a sequence's last rows the block keeps Q (see `QueryRows`); a score of more rows is refused in the
/// first layer.
template <class A>
concept ExposesQueriesAndKeys = requires(A& block, const LayerPlan& plan, Index sequence) {
  typename std::remove_cvref_t<decltype(block.queries(plan))>::value_type;
  requires std::same_as<std::remove_cvref_t<decltype(block.queries(plan))>,
                        QueryRows<typename std::remove_cvref_t<decltype(block.queries(plan))>::value_type>>;
  requires KeyView<std::remove_cvref_t<decltype(block.key_view(plan, sequence))>>;
};

/// The other way: the block computes the scores itself, right after its `attend` of the same layer. One call has a
/// window for each sequence that needs scores, in the order of the plan; `ScoreOfRanks` may ask for one for each row.
/// Which sequences these are is not known before. Into `window.scores`, which is uninitialised, go the attention
/// probabilities of the window's rows, reduced over the query heads by `window.over_heads`, then over the rows by
/// `window.over_rows` (eq. 1 of the paper: the mean over the heads of one row). A row that does not see a key gives it
/// 0. Any other finite numbers will do, with `ScoreOfRanks` from -4096 to 4096. Higher means more important. With top-p
/// a negative score counts as 0. Preferred where a block offers both ways.
template <class A, class Context>
concept ScoresTokens = requires(A& block, Context& context, const LayerPlan& plan,
                                std::span<const ScoreWindow> windows) {
  block.token_scores(context, plan, std::span<const ScoreWindow>(windows));
};

}  // namespace lazyllm
