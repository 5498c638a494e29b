#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lazyllm/aux_cache/storage.hpp"
#include "lazyllm/concepts.hpp"
#include "lazyllm/core/positions.hpp"
#include "lazyllm/core/rows.hpp"

namespace lazyllm {

/// The parked hidden states of one sequence's pruned tokens (the paper's Aux Cache): at most one row per token, the one
/// that the token goes on from when it is revived.
template <AuxStorage Storage>
class AuxCache {
 public:
  using context_type = typename Storage::context_type;
  using value_type = typename Storage::value_type;

  explicit AuxCache(Storage storage) : storage_(std::move(storage)) {}

  /// In a storage of its own for rows of `width` elements.
  explicit AuxCache(Index width) : AuxCache(Storage(width)) {}

  AuxCache(AuxCache&& other) noexcept
      : storage_(other.storage_.make_empty()),
        row_of_(std::move(other.row_of_)),
        scratch_(std::move(other.scratch_)),
        parked_(other.parked_) {
    std::swap(storage_, other.storage_);
    other.row_of_.clear();
    other.parked_ = 0;
  }
  AuxCache& operator=(AuxCache&& other) noexcept {
    std::swap(storage_, other.storage_);
    std::swap(row_of_, other.row_of_);
    std::swap(scratch_, other.scratch_);
    std::swap(parked_, other.parked_);
    return *this;
  }
  ~AuxCache() { truncate(0); }

  /// Makes room for `tokens` tokens, so that parking them allocates nothing. A shared pool is reserved once, for all
  /// its caches.
  void reserve(context_type& context, Index tokens) {
    storage_.reserve(context, tokens);
    row_of_.reserve(static_cast<std::size_t>(tokens));
    scratch_.reserve(static_cast<std::size_t>(tokens));
  }

  /// Copies row `from[i]` of `hidden` into the cache as the row of `tokens[i]`, which must have none.
  void park(context_type& context, RowsView<const value_type> hidden, std::span<const Index> from, Positions tokens) {
    acquire(context, tokens);
    copy_rows(context, hidden, from, storage_.rows(), std::span<const Index>(scratch_));
  }

  /// Copies the row of `tokens[i]` to row `to[i]` of `hidden` and forgets it. Every token must have a row.
  void revive(context_type& context, Positions tokens, RowsView<value_type> hidden, std::span<const Index> to) {
    scratch_.clear();
    for (const Position token : tokens) scratch_.push_back(row(token));
    copy_rows(context, RowsView<const value_type>(storage_.rows()), std::span<const Index>(scratch_), hidden, to);
    release(tokens);
  }

  /// The half of `park` that copies nothing, for a caller that copies the rows of several caches at once: takes a row
  /// for each of `tokens`, ascending, which must have none, and the caller copies to `rows().row(row(token))`. Throws
  /// and takes none without memory, or for a context of another stream than the rows'. May move the rows, of all caches
  /// that share a pool.
  void acquire(context_type& context, Positions tokens) {
    if (!tokens.empty() && tokens.back() >= std::ssize(row_of_)) {
      row_of_.resize(static_cast<std::size_t>(tokens.back()) + 1, none);
    }
    scratch_.resize(tokens.size());
    storage_.acquire(context, tokens, scratch_);
    for (std::size_t i = 0; i < tokens.size(); ++i) row_of_[static_cast<std::size_t>(tokens[i])] = scratch_[i];
    parked_ += std::ssize(tokens);
  }

  /// Forgets the rows of `tokens`, which must have one.
  void release(Positions tokens) {
    for (const Position token : tokens) release(token);
  }

  /// The number of the token's row in `rows()`; it must have one.
  Index row(Position token) const { return row_of_[static_cast<std::size_t>(token)]; }

  /// The storage's rows, until the next `acquire`.
  RowsView<value_type> rows() const { return storage_.rows(); }

  /// Whether `token` has a parked row.
  bool holds(Position token) const {
    return token < std::ssize(row_of_) && row_of_[static_cast<std::size_t>(token)] != none;
  }

  /// Forgets the rows of all tokens from position `tokens` on.
  void truncate(Index tokens) {
    for (Index token = tokens; token < std::ssize(row_of_); ++token) {
      if (holds(static_cast<Position>(token))) release(static_cast<Position>(token));
    }
    if (tokens < std::ssize(row_of_)) row_of_.erase(row_of_.begin() + tokens, row_of_.end());
  }

  /// A copy with rows of its own.
  AuxCache fork(context_type& context) const {
    AuxCache copy(storage_.make_empty());
    std::vector<Position> tokens;
    std::vector<Index> from;
    for (std::size_t token = 0; token < row_of_.size(); ++token) {
      if (row_of_[token] == none) continue;
      tokens.push_back(static_cast<Position>(token));
      from.push_back(row_of_[token]);
    }
    copy.acquire(context, tokens);  // may move the rows of a shared pool
    copy_rows(context, RowsView<const value_type>(storage_.rows()), std::span<const Index>(from), copy.storage_.rows(),
              std::span<const Index>(copy.scratch_));
    return copy;
  }

  Index parked_rows() const { return parked_; }
  Index parked_bytes() const { return parked_ * storage_.width() * static_cast<Index>(sizeof(value_type)); }
  Index width() const { return storage_.width(); }

 private:
  static constexpr Index none = -1;

  void release(Position token) {
    Index& row = row_of_[static_cast<std::size_t>(token)];
    storage_.release(row);
    row = none;
    --parked_;
  }

  Storage storage_;
  std::vector<Index> row_of_;  // by position
  std::vector<Index> scratch_;
  Index parked_ = 0;
};

}  // namespace lazyllm
