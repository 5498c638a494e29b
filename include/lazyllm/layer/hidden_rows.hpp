#pragma once

#include <numeric>
#include <span>
#include <vector>

#include "lazyllm/backend/operations.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/engine/rows.hpp"

namespace lazyllm::detail {

/// The hidden states of a running batch, in one of two buffers: the rows of the next batch are put together in the
/// other one.
template <Backend Context, class T>
class HiddenRows {
 public:
  /// Makes room for `rows` rows of `hidden_size` elements in both buffers. Rows of another size are lost.
  void reserve(Context& context, Index rows, Index hidden_size) {
    drop_other_widths(hidden_size);
    for (auto& buffer : buffers_) buffer.reserve(context, rows, hidden_size);
    targets_.reserve(to_size(rows));
  }

  /// Begins a batch of `rows` rows; what the buffers hold is lost.
  void start(Context& context, Index rows, Index hidden_size) {
    drop_other_widths(hidden_size);
    hidden_size_ = hidden_size;
    current_ = 0;
    count_ = rows;
    buffers_[0].reserve(context, rows, hidden_size);
  }

  /// `[count x hidden_size]` without gaps.
  RowsView<T> rows() const { return {buffers_[current_].rows().data, count_, hidden_size_}; }
  Index count() const { return count_; }  ///< rows of the running batch

  /// Room for the `rows` rows of the next batch.
  RowsView<T> next(Context& context, Index rows) {
    buffers_[1 - current_].reserve(context, rows, hidden_size_);
    return buffers_[1 - current_].rows().subrows(0, rows);
  }

  /// The rows that `swap` has replaced, until the next `next`.
  RowsView<T> last() const { return {buffers_[1 - current_].rows().data, last_count_, hidden_size_}; }

  /// Makes what `next` has given the running batch.
  void swap(Index rows) {
    current_ = 1 - current_;
    last_count_ = count_;
    count_ = rows;
  }

  /// Makes `rows`, numbers of rows of the running batch that ascend, the running batch.
  void keep(Context& context, std::span<const Index> rows) {
    const Index kept = std::ssize(rows);
    if (kept == count_) return;
    targets_.resize(rows.size());
    std::iota(targets_.begin(), targets_.end(), Index{0});
    copy_rows(context, RowsView<const T>(this->rows()), rows, next(context, kept), targets_);
    swap(kept);
  }

 private:
  void drop_other_widths(Index hidden_size) {
    for (auto& buffer : buffers_) {
      if (buffer.rows().width != hidden_size) buffer = {};
    }
  }

  typename Context::template Buffer<T> buffers_[2];
  Index hidden_size_ = 0;
  Index count_ = 0;
  Index last_count_ = 0;
  int current_ = 0;
  std::vector<Index> targets_;  // of `keep`
};

}  // namespace lazyllm::detail
