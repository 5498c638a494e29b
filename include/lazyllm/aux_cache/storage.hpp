#pragma once

#include <algorithm>
#include <concepts>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lazyllm/backend/operations.hpp"
#include "lazyllm/engine/element.hpp"
#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/engine/rows.hpp"

namespace lazyllm {

/// Storage of an Aux Cache: numbered slots, each a row of `hidden_size` elements. `acquire` fills a list with free
/// slots or throws and takes none; it may move the rows, whose slots keep their numbers. `reserve` makes room for so
/// many slots in all. `release` and `make_empty` must not throw: a step that fails calls them. `check` throws
/// `invalid_argument` for a context that must not work on the rows. Models: `OwnStorage`, `PooledStorage`.
template <class S>
concept AuxStorage = std::movable<S> &&
    requires(S& storage, const S& constant, typename S::context_type& context, std::span<Index> slots, Index slot) {
  typename S::value_type;
  requires Backend<typename S::context_type>;
  storage.reserve(context, slot);
  storage.acquire(context, slots);
  storage.release(slot);
  constant.check(context);
  { constant.make_empty() } -> std::same_as<S>;
  { constant.rows() } -> std::same_as<RowsView<typename S::value_type>>;
  { constant.hidden_size() } -> std::same_as<Index>;
};

/// Slots with a free list, in one buffer, which at least doubles when it grows, and never shrinks. Not thread-safe:
/// sequences that share a pool must be used, and destroyed, by one thread at a time. `Buffer` is the memory that the
/// rows lie in.
template <Backend Context, Element T, class Buffer = typename Context::template Buffer<T>>
class RowPool {
 public:
  /// Throws `invalid_argument` unless `hidden_size` is at least 1 and a row fits the memory.
  explicit RowPool(Index hidden_size) : hidden_size_(hidden_size) {
    constexpr Index max_size = std::numeric_limits<Index>::max() / (Index{1} << 32) / static_cast<Index>(sizeof(T));
    if (hidden_size < 1 || hidden_size > max_size) {
      detail::fail("Aux Cache: hidden_size ", hidden_size, " is out of range 1 to ", max_size);
    }
  }

  /// Makes room for `slots` slots in all. Throws `invalid_argument`, and changes nothing, for more than any memory has.
  void reserve(Context& context, Index slots) {
    const Index bytes = std::max<Index>(hidden_size_ * static_cast<Index>(sizeof(T)), sizeof(Index));  // row, or number
    const Index most = std::numeric_limits<Index>::max() / bytes;
    if (slots < 0 || slots > most) detail::fail("Aux Cache: ", slots, " slots is out of range 0 to ", most);
    buffer_.reserve(context, slots, hidden_size_);
    const Index there = buffer_.rows().rows;
    free_.reserve(detail::to_size(there));  // where this throws, the next call lists the new slots
    for (Index slot = there; slot-- > listed_;) free_.push_back(slot);
    listed_ = there;
  }

  /// Fills `slots` with free slots; the pool grows when there are too few.
  void acquire(Context& context, std::span<Index> slots) {
    const Index missing = std::ssize(slots) - std::ssize(free_);
    reserve(context, missing > 0 ? std::max<Index>(16, listed_ + missing) : listed_);  // checks the context in any case
    for (Index& slot : slots) {
      slot = free_.back();
      free_.pop_back();
    }
  }

  void check(Context& context) const { buffer_.check(context); }  ///< see `AuxStorage`

  /// Gives a slot back. Throws `invalid_argument` for a slot that the pool has not, and nothing else.
  void release(Index slot) {
    if (slot < 0 || slot >= listed_) detail::fail("Aux Cache: slot ", slot, " is out of range, below ", listed_);
    free_.push_back(slot);
  }

  RowsView<T> rows() const { return buffer_.rows(); }  ///< `[slots x hidden_size]`
  Index hidden_size() const { return hidden_size_; }   ///< elements of a row
  Index slots_in_use() const {
    return listed_ - std::ssize(free_);
  }  ///< slots that have been acquired and not released

 private:
  Buffer buffer_;
  std::vector<Index> free_;
  Index listed_ = 0;  // slots that are in use or in the free list
  Index hidden_size_;
};

/// Storage of an Aux Cache in slots of its own, in one piece of memory, for as many as the sequence has needed at once.
template <Backend Context, Element T, class Buffer = typename Context::template Buffer<T>>
class OwnStorage : public RowPool<Context, T, Buffer> {
 public:
  using context_type = Context;  ///< the backend's
  using value_type = T;          ///< of a row's elements
  using RowPool<Context, T, Buffer>::RowPool;

  /// A storage of the same kind for a forked sequence.
  OwnStorage make_empty() const { return OwnStorage(this->hidden_size()); }
};

/// Storage of an Aux Cache in slots of a pool that many sequences share: memory for as many rows as have been parked at
/// once, whichever sequence they belong to. Not thread-safe: one pool for each worker, see `RowPool`.
///
///     auto pool = std::make_shared<cpu::PooledStorage<T>::Pool>(hidden_size);
///     cpu::Sequence<T, cpu::PooledStorage> sequence(layers, AuxCache(cpu::PooledStorage<T>(pool)));
template <Backend Context, Element T, class Buffer = typename Context::template Buffer<T>>
class PooledStorage {
 public:
  using context_type = Context;              ///< the backend's
  using value_type = T;                      ///< of a row's elements
  using Pool = RowPool<Context, T, Buffer>;  ///< what sequences share

  /// Slots of a pool that other sequences use too. Throws `invalid_argument` if there is none.
  explicit PooledStorage(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {
    if (pool_ == nullptr) detail::fail("PooledStorage: the pool is null, one is needed");
  }

  /// Slots of a pool that only the sequence's forks will share. Throws `invalid_argument` unless `hidden_size` is at
  /// least 1.
  explicit PooledStorage(Index hidden_size) : pool_(std::make_shared<Pool>(hidden_size)) {}

  /// Makes room for `slots` slots in the whole pool; reserve a shared pool for all its sequences at once.
  void reserve(Context& context, Index slots) { pool_->reserve(context, slots); }

  void acquire(Context& context, std::span<Index> slots) { pool_->acquire(context, slots); }  ///< see `AuxStorage`
  void check(Context& context) const { pool_->check(context); }                               ///< see `AuxStorage`
  void release(Index slot) { pool_->release(slot); }                                          ///< gives a slot back
  PooledStorage make_empty() const { return PooledStorage(pool_); }                           ///< for a forked sequence
  RowsView<T> rows() const { return pool_->rows(); }          ///< `[slots x hidden_size]`
  Index hidden_size() const { return pool_->hidden_size(); }  ///< elements of a row

 private:
  std::shared_ptr<Pool> pool_;
};

}  // namespace lazyllm
