#pragma once

#include <limits>
#include <span>
#include <vector>

#include "lazyllm/aux_cache/running_sequence.hpp"
#include "lazyllm/backend/operations.hpp"
#include "lazyllm/engine/layer_plan.hpp"
#include "lazyllm/engine/plan_builder.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/engine/rows.hpp"

namespace lazyllm::detail {

/// The way from one layer's batch to the next one's: the next plan, and one list of row copies, in which the rows that
/// go on, those that are parked and those that are revived stand side by side for all sequences.
template <ParksRows Aux>
class Transition {
 public:
  using context_type = typename Aux::context_type;  ///< the backend's
  using value_type = typename Aux::value_type;      ///< of the hidden states

  /// Makes room for steps of `sequences` sequences with `tokens` tokens in all and `rows` rows.
  void reserve(Index sequences, Index tokens, Index rows) {
    next_.reserve(sequences, tokens);
    for (auto* list : {&dropped_, &revived_}) list->reserve(to_size(rows));
    for (auto* list : {&dropped_rows_, &revived_targets_, &copied_rows_, &copied_targets_}) {
      list->reserve(to_size(rows));
    }
    moves_.reserve(to_size(sequences));
    copies_.reserve(to_size(2 * sequences + 1));
  }

  /// Begins the way to the layer that tokens of depth `depth` run next.
  void start(Depth depth) {
    depth_ = depth;
    next_.clear();
    moves_.clear();
    for (auto* list : {&dropped_, &revived_}) list->clear();
    for (auto* list : {&dropped_rows_, &revived_targets_, &copied_rows_, &copied_targets_}) list->clear();
  }

  /// Appends a sequence with its next keys, in the order of the plan. Its next rows are those keys that have gone
  /// exactly as deep as the next layer: they stand in the batch or are parked. The other rows of the batch are parked.
  void add(RunningSequence<Aux>& running, const SequencePlan& part, Positions keys, Index outputs) {
    Move& move = moves_.emplace_back(Move{&running, {dropped_.size(), 0}, {revived_.size(), 0}});
    const bool may_revive = running.parked_at(depth_) > 0;
    const Positions rows = part.positions;
    std::size_t row = 0;
    const auto drop_before = [&](Index key) {
      for (; row < rows.size() && rows[row] < key; ++row) {
        dropped_.push_back(rows[row]);
        dropped_rows_.push_back(part.first_row + static_cast<Index>(row));
      }
    };
    next_.append_keys(keys);
    for (const Position key : keys) {
      if (running.depth(key) != depth_) continue;  // in a decode step so are most
      drop_before(key);
      if (row < rows.size() && rows[row] == key) {
        go_on(part.first_row + static_cast<Index>(row++), key);
      } else if (may_revive) {
        revived_.push_back(key);
        revived_targets_.push_back(next_.row_count());
        next_.append_row(key);
      }
    }
    drop_before(std::numeric_limits<Index>::max());
    move.dropped.count = dropped_.size() - move.dropped.first;
    move.revived.count = revived_.size() - move.revived.first;
    next_.finish_sequence(part.tokens, outputs);
  }

  /// Appends a sequence whose rows all go on, with the same keys.
  void keep(const SequencePlan& part, Index outputs) {
    next_.append_keys(part.keys);
    for (Index row = part.first_row; const Position position : part.positions) go_on(row++, position);
    next_.finish_sequence(part.tokens, outputs);
  }

  /// Appends a sequence that has left the step: its rows are lost.
  void leave_out(const SequencePlan& part) { next_.finish_sequence(part.tokens, 0); }

  PlanBuilder& next() { return next_; }                        ///< the plan of the next layer
  Index revived_rows() const { return std::ssize(revived_); }  ///< of all sequences

  /// Whether the next batch has other rows than this one.
  bool moves_rows(Index rows) const { return std::ssize(copied_rows_) != rows || !revived_.empty(); }

  /// Copies the rows that go on from `hidden` to `next`, unless they are there already, the dropped ones to the Aux
  /// Caches and the revived ones from there.
  void move_rows(context_type& context, RowsView<value_type> hidden, RowsView<value_type> next, bool are_there) {
    // All slots are taken first: that may move the rows of a pool.
    for (const Move& move : moves_) move.running->acquire(context, move.dropped.of(dropped_));
    copies_.clear();
    if (!are_there) copies_.push_back({hidden, copied_rows_, next, copied_targets_});
    for (const Move& move : moves_) {
      move.running->park(depth_, hidden, move.dropped.of(dropped_rows_), copies_);
      move.running->revive(depth_, move.revived.of(revived_), next, move.revived.of(revived_targets_), copies_);
    }
    copy_rows(context, std::span<const RowCopy<value_type>>(copies_));
  }

 private:
  /// Appends a row of the batch to the next one.
  void go_on(Index row, Position position) {
    copied_rows_.push_back(row);
    copied_targets_.push_back(next_.row_count());
    next_.append_row(position);
  }

  /// A sequence's part of a list of all sequences.
  struct Part {
    std::size_t first = 0;
    std::size_t count = 0;

    template <class T>
    std::span<const T> of(const std::vector<T>& list) const {
      return std::span(list).subspan(first, count);
    }
  };

  struct Move {
    RunningSequence<Aux>* running;
    Part dropped;
    Part revived;
  };

  Depth depth_ = 0;
  PlanBuilder next_;
  std::vector<Move> moves_;
  // Of all sequences, one after the other: positions, rows of the batch and rows of the next one.
  std::vector<Position> dropped_;
  std::vector<Index> dropped_rows_;
  std::vector<Position> revived_;
  std::vector<Index> revived_targets_;
  std::vector<Index> copied_rows_;
  std::vector<Index> copied_targets_;
  std::vector<RowCopy<value_type>> copies_;
};

}  // namespace lazyllm::detail
