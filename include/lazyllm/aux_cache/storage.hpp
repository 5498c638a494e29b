#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lazyllm/core/positions.hpp"
#include "lazyllm/core/rows.hpp"
#include "lazyllm/error.hpp"

namespace lazyllm {

/// Storage of an Aux Cache in which row p belongs to position p: no bookkeeping, and room for every token up to the
/// highest position ever parked. Owned by one sequence. `Buffer` is the memory that the rows lie in.
template <class Context, class T, class Buffer = typename Context::template Buffer<T>>
class DenseStorage {
 public:
  using context_type = Context;
  using value_type = T;

  /// Throws `invalid_argument` unless `width`, the elements of a row, is at least 1.
  explicit DenseStorage(Index width) : width_(width) {
    if (width < 1) detail::fail("DenseStorage: width ", width, " is out of range, at least 1");
  }

  /// Makes room for the positions below `tokens`.
  void reserve(Context& context, Index tokens) { buffer_.reserve(context, tokens, width_); }

  /// Writes the row for each of `tokens`, ascending, to `rows`; rows taken before keep their number and content.
  void acquire(Context& context, Positions tokens, std::span<Index> rows) {
    reserve(context, tokens.empty() ? 0 : tokens.back() + Index{1});  // checks the context in any case
    std::copy(tokens.begin(), tokens.end(), rows.begin());
  }

  void release(Index) {}

  /// A storage of the same kind for a forked sequence.
  DenseStorage make_empty() const { return DenseStorage(width_); }

  RowsView<T> rows() const { return buffer_.rows(); }
  Index width() const { return width_; }

 private:
  Buffer buffer_;
  Index width_;
};

/// Rows that many sequences share, with a free list. Must be used by one thread at a time, the end of a sequence
/// included.
template <class Context, class T>
class RowPool {
 public:
  /// Throws `invalid_argument` unless `width`, the elements of a row, is at least 1.
  explicit RowPool(Index width) : width_(width) {
    if (width < 1) detail::fail("RowPool: width ", width, " is out of range, at least 1");
  }

  /// Makes room for `rows` rows in all.
  void reserve(Context& context, Index rows) {
    buffer_.reserve(context, rows, width_);
    const Index there = buffer_.rows().rows;
    free_.reserve(static_cast<std::size_t>(there));  // where this throws, the next call lists the new rows
    for (Index row = there; row-- > listed_;) free_.push_back(row);
    listed_ = there;
  }

  /// Fills `rows` with free rows; the pool grows when there are too few.
  void acquire(Context& context, std::span<Index> rows) {
    const Index missing = std::ssize(rows) - std::ssize(free_);
    reserve(context, missing > 0 ? std::max<Index>(16, listed_ + missing) : listed_);  // checks the context in any case
    for (Index& row : rows) {
      row = free_.back();
      free_.pop_back();
    }
  }

  void release(Index row) { free_.push_back(row); }

  RowsView<T> rows() const { return buffer_.rows(); }
  Index width() const { return width_; }
  Index rows_in_use() const { return listed_ - std::ssize(free_); }

 private:
  typename Context::template Buffer<T> buffer_;
  std::vector<Index> free_;
  Index listed_ = 0;  // rows that are in use or in the free list
  Index width_;
};

/// Storage of an Aux Cache in rows of a pool: memory only for the rows that are parked now, whichever sequence they
/// belong to.
template <class Context, class T>
class PooledStorage {
 public:
  using context_type = Context;
  using value_type = T;
  using Pool = RowPool<Context, T>;

  /// Rows of a pool that other sequences use too.
  explicit PooledStorage(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {}

  /// Rows of a pool of its own. Throws `invalid_argument` unless `width`, the elements of a row, is at least 1.
  explicit PooledStorage(Index width) : pool_(std::make_shared<Pool>(width)) {}

  /// Makes room for `tokens` rows in the whole pool; reserve a shared pool for all its sequences at once.
  void reserve(Context& context, Index tokens) { pool_->reserve(context, tokens); }

  void acquire(Context& context, Positions, std::span<Index> rows) { pool_->acquire(context, rows); }
  void release(Index row) { pool_->release(row); }
  PooledStorage make_empty() const { return PooledStorage(pool_); }
  RowsView<T> rows() const { return pool_->rows(); }
  Index width() const { return pool_->width(); }

 private:
  std::shared_ptr<Pool> pool_;
};

}  // namespace lazyllm
