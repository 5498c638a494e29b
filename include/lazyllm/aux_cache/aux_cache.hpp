#pragma once

#include <algorithm>
#include <concepts>
#include <span>
#include <utility>
#include <vector>

#include "lazyllm/aux_cache/storage.hpp"
#include "lazyllm/backend/operations.hpp"
#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/engine/rows.hpp"

namespace lazyllm {

/// The parked hidden states of one sequence's pruned tokens (the paper's Aux Cache, section 3.2): at most one row per
/// token, the one that the token goes on from when it is revived.
template <AuxStorage Storage>
class AuxCache {
 public:
  using context_type = typename Storage::context_type;  ///< the backend's
  using value_type = typename Storage::value_type;      ///< of a row's elements
  static constexpr Index no_slot = -1;                  ///< what `slot` says of a token that is not parked

  /// An empty cache in `storage`.
  explicit AuxCache(Storage storage) : storage_(std::move(storage)) {}

  /// In a storage of its own for rows of `hidden_size` elements.
  explicit AuxCache(Index hidden_size) : AuxCache(Storage(hidden_size)) {}

  /// Takes over all rows; `other` is empty then.
  AuxCache(AuxCache&& other) noexcept : storage_(other.storage_.make_empty()) { swap(other); }
  /// Takes over all rows; those that were here are forgotten.
  AuxCache& operator=(AuxCache&& other) noexcept {
    AuxCache moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~AuxCache() { truncate(0); }

  /// Makes room for `tokens` parked tokens. A shared pool is reserved once, for all its caches.
  void reserve(context_type& context, Index tokens) {
    storage_.reserve(context, tokens);
    for (auto* list : {&slot_of_, &parked_slots_, &revived_slots_}) list->reserve(detail::to_size(tokens));
  }

  /// Takes a slot for each of `positions`, ascending, which must have none. Throws and takes none without memory, or
  /// for a context of another stream than the slots'. May move the rows, of all caches that share a pool: so all caches
  /// of a batch acquire before one of them parks.
  void acquire(context_type& context, Positions positions) {
    if (!positions.empty() && positions.back() >= std::ssize(slot_of_)) {
      slot_of_.resize(detail::to_size(positions.back()) + 1, no_slot);
    }
    parked_slots_.resize(positions.size());
    storage_.acquire(context, parked_slots_);
    for (std::size_t i = 0; i < positions.size(); ++i) slot_of_[detail::to_size(positions[i])] = parked_slots_[i];
    parked_ += std::ssize(positions);
  }

  /// Appends to `copies` what parks the positions of the last `acquire`: row `from[i]` of `hidden` goes to the slot of
  /// the i-th. The lists are valid until the next `acquire`.
  void park(RowsView<const value_type> hidden, std::span<const Index> from,
            std::vector<RowCopy<value_type>>& copies) const {
    if (!from.empty()) copies.push_back({hidden, from, storage_.rows(), parked_slots_});
  }

  /// Appends to `copies` what revives `positions`: the row of `positions[i]` goes to row `to[i]` of `hidden`. Their
  /// slots are valid until the next `revive`; `forget` gives them back. Throws `invalid_argument` if one is not parked.
  void revive(Positions positions, RowsView<value_type> hidden, std::span<const Index> to,
              std::vector<RowCopy<value_type>>& copies) {
    if (positions.empty()) return;
    revived_slots_.clear();
    for (const Position position : positions) revived_slots_.push_back(parked_slot("revive", position));
    copies.push_back({storage_.rows(), revived_slots_, hidden, to});
  }

  /// The slot of a position, or `no_slot`; negative positions have none.
  Index slot(Position position) const {
    const std::size_t place = detail::to_size(position);  // beyond all places for a negative one
    return place < slot_of_.size() ? slot_of_[place] : no_slot;
  }

  /// Whether the token at `position` is parked.
  bool holds(Position position) const { return slot(position) != no_slot; }

  /// Makes a token unparked and leaves its slot to the caller, who gives it back with `release` or `link`. Throws
  /// `invalid_argument` if it is not parked.
  Index unlink(Position position) {
    const Index slot = parked_slot("unlink", position);
    --parked_;
    slot_of_[detail::to_size(position)] = no_slot;
    return slot;
  }

  /// Parks a token, which must be unparked, in a slot that `unlink` has returned.
  void link(Position position, Index slot) {
    slot_of_[detail::to_size(position)] = slot;
    ++parked_;
  }

  /// Gives back a slot that `unlink` has returned, once. Throws `invalid_argument` for one that the storage has not.
  void release(Index slot) { storage_.release(slot); }

  /// Makes a token unparked and gives its slot back, if it has one.
  void forget(Position position) {
    if (holds(position)) release(unlink(position));
  }

  /// Forgets all tokens from position `tokens` on. Throws `invalid_argument` if that is negative.
  void truncate(Index tokens) {
    if (tokens < 0) detail::fail("AuxCache::truncate: ", tokens, " tokens is out of range, at least 0");
    for (Index position = tokens; position < std::ssize(slot_of_); ++position) forget(static_cast<Position>(position));
    if (tokens < std::ssize(slot_of_)) slot_of_.erase(slot_of_.begin() + tokens, slot_of_.end());
  }

  /// Forgets the tokens [first, last); those behind take their places. Throws `invalid_argument` unless
  /// 0 <= first <= last.
  void erase(Index first, Index last) {
    if (first < 0 || last < first) {
      detail::fail("AuxCache::erase: tokens ", first, " to ", last, " are no range, 0 <= first <= last");
    }
    const Index end = std::ssize(slot_of_);
    for (Index position = first; position < std::min(last, end); ++position) forget(static_cast<Position>(position));
    if (first < end) slot_of_.erase(slot_of_.begin() + first, slot_of_.begin() + std::min(last, end));
  }

  /// Throws `invalid_argument` for a context that must not work on the rows.
  void check(context_type& context) const { storage_.check(context); }

  /// A copy with slots of its own. Throws as `check`.
  AuxCache fork(context_type& context) const {
    check(context);
    AuxCache copy(storage_.make_empty());
    std::vector<Position> positions;
    std::vector<Index> from;
    for (std::size_t position = 0; position < slot_of_.size(); ++position) {
      if (slot_of_[position] == no_slot) continue;
      positions.push_back(static_cast<Position>(position));
      from.push_back(slot_of_[position]);
    }
    copy.acquire(context, positions);  // may move the rows of a shared pool
    std::vector<RowCopy<value_type>> copies;
    copy.park(storage_.rows(), from, copies);
    copy_rows(context, std::span<const RowCopy<value_type>>(copies));
    return copy;
  }

  RowsView<value_type> rows() const { return storage_.rows(); }  ///< `[slots x hidden_size]`, until the next `acquire`
  Index parked_rows() const { return parked_; }                  ///< tokens that are parked now
  Index parked_bytes() const {
    return parked_ * hidden_size() * static_cast<Index>(sizeof(value_type));
  }                                                             ///< bytes of their rows
  Index hidden_size() const { return storage_.hidden_size(); }  ///< elements of a row

 private:
  Index parked_slot(const char* what, Position position) const {
    const Index slot = this->slot(position);
    if (slot == no_slot) detail::fail("AuxCache::", what, ": the token at position ", position, " is not parked");
    return slot;
  }

  void swap(AuxCache& other) noexcept {
    std::swap(storage_, other.storage_);
    std::swap(slot_of_, other.slot_of_);
    std::swap(parked_slots_, other.parked_slots_);
    std::swap(revived_slots_, other.revived_slots_);
    std::swap(parked_, other.parked_);
  }

  Storage storage_;
  std::vector<Index> slot_of_;        // by position
  std::vector<Index> parked_slots_;   // of the last `acquire`
  std::vector<Index> revived_slots_;  // of the last `revive`
  Index parked_ = 0;
};

/// The requirement on the Aux Cache of a `Sequence`: what `AuxCache` does, with the same meaning. Models: `AuxCache`.
template <class A>
concept ParksRows = std::movable<A> &&
    requires(A& aux, const A& constant, typename A::context_type& context, Positions positions, Position position,
             Index index, RowsView<typename A::value_type> rows, std::span<const Index> places,
             std::vector<RowCopy<typename A::value_type>>& copies) {
  requires Backend<typename A::context_type>;
  { A::no_slot } -> std::convertible_to<Index>;
  aux.reserve(context, index);
  aux.acquire(context, positions);
  constant.check(context);
  constant.park(rows, places, copies);
  aux.revive(positions, rows, places, copies);
  { constant.slot(position) } -> std::same_as<Index>;
  { constant.holds(position) } -> std::same_as<bool>;
  { aux.unlink(position) } -> std::same_as<Index>;
  aux.link(position, index);
  aux.release(index);
  aux.forget(position);
  aux.truncate(index);
  aux.erase(index, index);
  { constant.fork(context) } -> std::same_as<A>;
  { constant.rows() } -> std::same_as<RowsView<typename A::value_type>>;
  { constant.parked_rows() } -> std::same_as<Index>;
  { constant.parked_bytes() } -> std::same_as<Index>;
  { constant.hidden_size() } -> std::same_as<Index>;
};

}  // namespace lazyllm
