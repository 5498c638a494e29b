#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "lazyllm/aux_cache/sequence.hpp"
#include "lazyllm/backend/operations.hpp"
#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/positions.hpp"

namespace lazyllm::detail {

/// A sequence while a step runs: all changes that the step makes to it. They are taken back by `roll_back` and by the
/// destructor, unless a commit comes first. A revived token keeps its slot until then, so that taking back copies no
/// rows and cannot fail.
template <ParksRows Aux>
class RunningSequence {
 public:
  using context_type = typename Aux::context_type;  ///< the backend's
  using value_type = typename Aux::value_type;      ///< of a row's elements

  /// Appends `new_tokens` tokens of depth 0. Throws `logic_error` that names the `entry` if the sequence is in a
  /// running step.
  RunningSequence(Sequence<Aux>& sequence, Index new_tokens, Index entry)
      : sequence_(&sequence), old_length_(sequence.length()) {
    if (sequence.in_step_) {
      fail<logic_error>("Step::begin: entry ", entry, " has a sequence that is in another entry or a running step");
    }
    sequence.depth_.resize(to_size(old_length_ + new_tokens), 0);
    sequence.undo_.clear();
    sequence.in_step_ = true;
    std::ranges::sort(sequence.prompt_.revived);
    revived_before_ = sequence.prompt_.revived.size();
  }
  /// Takes over the changes.
  RunningSequence(RunningSequence&& other) noexcept
      : sequence_(std::exchange(other.sequence_, nullptr)),
        old_length_(other.old_length_),
        revived_before_(other.revived_before_) {}
  /// Swaps the changes of both.
  RunningSequence& operator=(RunningSequence&& other) noexcept {
    std::swap(sequence_, other.sequence_);
    std::swap(old_length_, other.old_length_);
    std::swap(revived_before_, other.revived_before_);
    return *this;
  }
  ~RunningSequence() { roll_back(); }

  bool running() const { return sequence_ != nullptr; }                       ///< false once committed or rolled back
  const Sequence<Aux>& sequence() const { return *sequence_; }                ///< the new tokens included
  const UnfinishedPrompt<Aux>& prompt() const { return sequence_->prompt_; }  ///< as it was before the step
  Depth depth(Position position) const {
    return sequence_->depth_[to_size(position)];
  }  ///< layers that hold K/V of a token
  bool parked(Position position) const {
    return sequence_->aux_.holds(position);
  }  ///< whether a token has a parked row
  /// Tokens that are parked at a depth.
  Index parked_at(Index depth) const { return sequence_->parked_at_[to_size(depth)]; }

  /// Whether a token that is parked now waits for the rest of the present prompt: an earlier step of it has revived the
  /// token, which may have been pruned before that.
  bool waits_for_prompt(Position position) const {
    const auto first = sequence_->prompt_.revived.begin();
    return std::binary_search(first, first + static_cast<Index>(revived_before_), position);
  }

  /// Notes that tokens [first, last), of depth 0, take part from layer 0 on.
  void enter(Index first, Index last) {
    for (Index position = first; position < std::min(last, old_length_); ++position) {
      sequence_->undo_.push_back({static_cast<Position>(position), 0, Aux::no_slot});
    }
  }

  /// Notes that `rows` have K/V in the layers below `depth`.
  void set_depth(Positions rows, Depth depth) {
    for (const Position row : rows) sequence_->depth_[to_size(row)] = depth;
  }

  /// Takes slots for the tokens to park next; see `AuxCache::acquire`.
  void acquire(context_type& context, Positions positions) { sequence_->aux_.acquire(context, positions); }

  /// Parks the tokens of the last `acquire`, which are at `depth`; see `AuxCache::park`.
  void park(Depth depth, RowsView<const value_type> hidden, std::span<const Index> from,
            std::vector<RowCopy<value_type>>& copies) {
    sequence_->aux_.park(hidden, from, copies);
    sequence_->parked_at_[to_size(depth)] += std::ssize(from);
  }

  /// Revives tokens that are parked at `depth`; see `AuxCache::revive`.
  void revive(Depth depth, Positions positions, RowsView<value_type> hidden, std::span<const Index> to,
              std::vector<RowCopy<value_type>>& copies) {
    Aux& aux = sequence_->aux_;
    std::vector<Position>& revived = sequence_->prompt_.revived;
    grow(sequence_->undo_, positions.size());
    grow(revived, positions.size());
    aux.revive(positions, hidden, to, copies);
    const Index prompt_begin = old_length_ - sequence_->prompt_.tokens;
    for (const Position position : positions) {
      sequence_->undo_.push_back({position, depth, aux.unlink(position)});
      if (position < prompt_begin && !waits_for_prompt(position)) revived.push_back(position);
    }
    sequence_->parked_at_[to_size(depth)] -= std::ssize(positions);
  }

  /// Keeps all changes; the step, of a prompt or not, counts as finished.
  void commit(bool prompt) noexcept {
    Sequence<Aux>& sequence = *keep_changes();
    if (prompt) sequence.prompt_end_ = sequence.length();
    sequence.prompt_.finish();
    ++sequence.steps_;
  }

  /// Keeps all changes; of a prompt of `tokens` tokens so far, the rest waits where it waited before.
  void commit_slice(Index tokens) noexcept { keep_changes()->prompt_.tokens = tokens; }

  /// Keeps all changes; the rest of the prompt waits as `prompt` says.
  void commit_slice(UnfinishedPrompt<Aux>&& prompt) noexcept {
    Sequence<Aux>& sequence = *keep_changes();
    prompt.revived = std::move(sequence.prompt_.revived);
    sequence.prompt_ = std::move(prompt);
  }

  /// Makes the sequence what it was before the step.
  void roll_back() noexcept {
    if (sequence_ == nullptr) return;
    Sequence<Aux>& sequence = *std::exchange(sequence_, nullptr);
    for (const auto& undo : sequence.undo_) {
      sequence.aux_.forget(undo.position);  // it may have been parked anew
      if (undo.slot != Aux::no_slot) sequence.aux_.link(undo.position, undo.slot);
      sequence.depth_[to_size(undo.position)] = undo.depth;
    }
    sequence.prompt_.revived.resize(revived_before_);
    sequence.drop_from(old_length_);
    sequence.in_step_ = false;
  }

 private:
  Sequence<Aux>* keep_changes() noexcept {
    for (const auto& undo : sequence_->undo_) {
      if (undo.slot != Aux::no_slot) sequence_->aux_.release(undo.slot);
    }
    sequence_->in_step_ = false;
    return std::exchange(sequence_, nullptr);
  }

  /// So that later entries cannot fail.
  template <class List>
  static void grow(List& list, std::size_t more) {
    if (list.size() + more > list.capacity()) list.reserve(std::max(list.size() + more, 2 * list.capacity()));
  }

  Sequence<Aux>* sequence_;
  Index old_length_;
  std::size_t revived_before_ = 0;  // entries of the prompt's list that are of earlier steps
};

}  // namespace lazyllm::detail
