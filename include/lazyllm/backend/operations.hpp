#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "lazyllm/engine/contiguous_keys.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/engine/queries.hpp"
#include "lazyllm/engine/rows.hpp"

/// \file
/// What a backend does: row buffers and the operations of a step, each on all sequences of a batch at once.

namespace lazyllm {

/// Row `from[i]` of `source` becomes row `to[i]` of `target` for every i. Gather, scatter and merge are all this. The
/// copies of one call happen in any order: no row that is written may be read or written by another.
template <class T>
struct RowCopy {
  RowsView<const T> source;     ///< `[any x width]`
  std::span<const Index> from;  ///< `[copies]` rows of `source`
  RowsView<T> target;           ///< `[any x width]`
  std::span<const Index> to;    ///< `[copies]` rows of `target`
};

/// The scores of one sequence: attention probabilities of some rows, reduced over the query heads, then over the rows.
template <class Keys>
struct ScoreTask {
  Index first_row = 0;                 ///< the first of these rows in the batch
  std::span<const Position> limits{};  ///< `[rows]` row first_row + i sees the first `limits[i]` keys, the others are 0
  Keys key_view{};                     ///< K of the sequence in this layer
  Positions keys{};                    ///< `[keys]` positions of the active tokens
  Reduce over_heads = Reduce::mean;    ///< over the query heads of each row
  Reduce over_rows = Reduce::mean;     ///< over the rows
  std::span<float> scores{};           ///< `[keys]` output, in the backend's memory
};

/// Gives every key the highest score among the `pooling` (odd) keys around it. A score that is not finite stays in its
/// place and does not spread.
struct PoolTask {
  std::span<const float> scores{};  ///< `[keys]` in the backend's memory
  std::span<float> pooled{};        ///< `[keys]` output, other memory
  Index pooling = 1;                ///< odd
};

/// Which keys of one sequence stay active: the highest scores, equal scores to the smaller position. Of the chosen keys
/// that would be revived only the `max_revived` highest stay, and the protected ones.
struct SelectionTask {
  bool top_p = false;        ///< the fewest keys that hold the share `p` of all scores; else `k` keys
  Index k = 1;               ///< at least 0; the protected keys count among them
  double p = 1;              ///< in (0, 1]
  Index protect_before = 0;  ///< keys at positions below it are kept whatever their score
  Index protect_from = 0;    ///< so are keys at positions from it on
  std::span<const std::uint8_t> protect_mask{};  ///< so are keys at positions p with mask[p] != 0; host memory
  std::span<const std::uint8_t> revives{};  ///< `[keys]` which would be revived, for a limit; else empty; host memory
  Index max_revived = 0;                    ///< with `revives`: at least 0; the protected ones count among them
  Positions keys{};                         ///< `[keys]` positions of the active tokens
  std::span<const float> scores{};          ///< `[keys]` in the backend's memory

  /// Whether the key at position `p` is kept whatever its score.
  bool protects(Position p) const {
    return p < protect_before || p >= protect_from ||
           (detail::to_size(p) < protect_mask.size() && protect_mask[detail::to_size(p)] != 0);
  }
};

/// A backend's answer to several tasks.
struct KeptTokens {
  std::vector<Index> indices;       ///< for each task the ascending indices into its `keys`, one task after the other
  std::vector<Index> indptr = {0};  ///< `[tasks + 1]` where each task's part of `indices` begins
  std::vector<Index> bad;  ///< `[tasks]` index of the first score that is not finite, or -1; such a task keeps none

  /// The indices of one task.
  std::span<const Index> of(std::size_t task) const {
    return std::span(indices).subspan(detail::to_size(indptr[task]), detail::to_size(indptr[task + 1] - indptr[task]));
  }
};

/// The rows of one sequence that go on after a selection, before the host knows which ones they are: row `first_row +
/// i` of the batch is that of key i of the task.
struct KeptRows {
  Index task = -1;      ///< number of the selection's task, -1 for a sequence whose rows all go on
  Index first_row = 0;  ///< where the sequence's rows begin
  Index count = 0;      ///< how many go on
  Index target = 0;     ///< where they go: the end of the sequence before
};

/// A backend, by the context that its operations take first. They are found by argument-dependent lookup:
/// - `copy_rows(context, copies)` does all copies,
/// - `attention_scores(context, queries, count, task_of)` computes the scores of `task_of(0 … count - 1)`,
/// - `accumulate_scores(context, scores, sums, first)` adds scores to sums, or sets the sums if `first`, and copies the
///   sums back to the scores,
/// - `pool_scores(context, tasks)` and `select_tokens(context, tasks, kept)` do what their tasks say,
/// - `copy_to_host(context, rows, target)` and `copy_from_host(context, source, rows)` move rows without gaps; the host
///   memory may be used again when they return.
/// `Buffer<T>` is a growable matrix whose rows stay when it grows; its `check(context)` throws `invalid_argument` for a
/// context that must not work on them. `rows()` is all that there is room for, none by default; the width may change
/// only then. It moves without throwing.
template <class C>
concept Backend = requires(C& context, std::span<const RowCopy<float>> copies, const QueryRows<float>& queries,
                           ScoreTask<ContiguousKeys<float>> (*task_of)(Index), std::span<float> scores,
                           std::span<const PoolTask> pool_tasks, std::span<const SelectionTask> selection_tasks,
                           KeptTokens& kept, typename C::template Buffer<float>& buffer, float* target,
                           const float* source) {
  buffer.reserve(context, Index{}, Index{});
  buffer.check(context);
  { buffer.rows() } -> std::same_as<RowsView<float>>;
  copy_rows(context, copies);
  attention_scores(context, queries, Index{}, task_of);
  accumulate_scores(context, scores, scores, bool{});
  pool_scores(context, pool_tasks);
  select_tokens(context, selection_tasks, kept);
  copy_to_host(context, RowsView<const float>(buffer.rows()), target);
  copy_from_host(context, source, buffer.rows());
};

/// Copies row `from[i]` of `source` to row `to[i]` of `target` for every i.
template <Backend Context, class T>
void copy_rows(Context& context, RowsView<const T> source, std::span<const Index> from, RowsView<T> target,
               std::span<const Index> to) {
  const RowCopy<T> copy{source, from, target, to};
  copy_rows(context, std::span<const RowCopy<T>>(&copy, 1));
}

/// A backend that goes on while the host waits for a selection. `C::PendingSelection` is one that is under way:
/// - `reserve(context, tasks, keys)` of it makes room, `count(t)` is how many keys task t keeps, if it is by number and
///   has no limit of revived keys, or -1,
/// - `begin_selection(context, tasks, selection)` and `end_selection(context, selection, kept)` together are
///   `select_tokens`; only the second waits, for the selection and nothing behind it,
/// - `copy_kept_rows(context, selection, source, target, rows)` copies the rows of kept keys in between. Of a task that
///   has a score that is not finite it copies any rows.
template <class C>
concept SelectsAhead = Backend<C> &&
    requires(C& context, typename C::PendingSelection& selection, std::span<const SelectionTask> tasks,
             KeptTokens& kept, RowsView<const float> source, RowsView<float> target, std::span<const KeptRows> rows) {
  selection.reserve(context, Index{}, Index{});
  { selection.count(Index{}) } -> std::same_as<Index>;
  begin_selection(context, tasks, selection);
  copy_kept_rows(context, selection, source, target, rows);
  end_selection(context, selection, kept);
};

}  // namespace lazyllm
