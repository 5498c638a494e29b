#pragma once

#include <exception>
#include <span>

#include "lazyllm/engine/positions.hpp"
#include "lazyllm/engine/rows.hpp"

namespace lazyllm {

/// An entry of a step that failed alone. Its sequence is as it was before the step; for its K/V see `Sequence`.
struct StepFailure {
  Index entry = 0;  ///< number of the entry
  /// What a policy threw, or `invalid_argument`: for a policy's answer out of range, a chunk that should have stopped
  /// in an earlier layer, or a score that is not a finite number.
  std::exception_ptr error;
};

/// What a step leaves: hidden states after the last layer, for final norm and logits. Valid until the step's next
/// `begin` or `reserve`, or its end of life.
template <class T>
struct StepOutput {
  RowsView<T> rows;               ///< `[outputs x hidden_size]` of all entries, one after the other
  std::span<const Index> indptr;  ///< `[entries + 1]` where each entry's rows begin; an unfinished prompt has none
  std::span<const StepFailure> failures;  ///< ascending; these entries have no rows

  /// The rows of one entry; no rows, at a null pointer, if it failed or its prompt is unfinished.
  RowsView<T> of(Index entry) const {
    const Index first = indptr[detail::to_size(entry)];
    const Index count = indptr[detail::to_size(entry + 1)] - first;
    return count > 0 ? rows.subrows(first, count) : RowsView<T>(nullptr, 0, rows.width);
  }
};

}  // namespace lazyllm
