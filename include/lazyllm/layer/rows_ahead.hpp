#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "lazyllm/backend/operations.hpp"
#include "lazyllm/engine/layer_plan.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/engine/rows.hpp"
#include "lazyllm/layer/hidden_rows.hpp"
#include "lazyllm/pruner/batch_pruner.hpp"

namespace lazyllm::detail {

/// The number of the request of sequence `s`, which has one.
template <class Request>
std::size_t request_of(const std::vector<Request>& requests, Index s) {
  return to_size(std::ranges::lower_bound(requests, s, {}, &Request::sequence) - requests.begin());
}

/// The rows that go on to the next layer where it is known how many they are before it is known which: they are moved
/// while a selection is under way.
class RowsAhead {
 public:
  void reserve(Index sequences, Index rows) {
    sequences_.reserve(to_size(sequences));
    row_indptr_.reserve(to_size(sequences + 1));
    kept_.reserve(to_size(rows));
  }
  void clear() { sequences_.clear(); }
  bool moved() const { return !sequences_.empty(); }

  /// `[sequences + 1]` where each sequence's rows begin, if they have moved.
  std::span<const Index> row_indptr() const { return row_indptr_; }

  /// Lists the rows that go on, in the order of the batch. Returns false, and lists none, if their number is not known:
  /// of a sequence that changes after `depth` layers all keys must be rows, and be kept by number.
  template <class Member, class Request, class Pruner>
  bool list(const LayerPlan& plan, Index depth, const std::vector<Member>& members,
            const std::vector<Request>& requests, const Pruner& pruner) {
    clear();
    row_indptr_.assign(1, 0);
    for (Index s = 0; s < plan.sequences(); ++s) {
      const Member& member = members[to_size(s)];
      const SequencePlan part = plan.sequence(s);
      KeptRows kept{.first_row = part.first_row, .count = std::ssize(part.positions), .target = row_indptr_.back()};
      if (member.event == depth) {
        const bool ranked = member.joined && member.selection.ranks() && part.mask == Mask::causal;
        if (ranked) {
          const std::size_t request = request_of(requests, s);
          kept.task = pruner.task(request);
          kept.count = pruner.count(request);
        }
        if (!ranked || kept.count < 0 || kept.count > member.entry.max_rows) {
          clear();
          return false;
        }
      }
      row_indptr_.push_back(kept.target + kept.count);
      sequences_.push_back(kept);
    }
    return true;
  }

  /// Makes the listed rows the running batch.
  template <SelectsAhead Context, class Pruner, class T>
  void move(Context& context, Pruner& pruner, HiddenRows<Context, T>& hidden) {
    pruner.copy_kept(context, RowsView<const T>(hidden.rows()), hidden.next(context, row_indptr_.back()), sequences_);
    hidden.swap(row_indptr_.back());
  }

  /// Takes the rows of sequences that have left since out of the batch, and forgets the list.
  template <Backend Context, class T, class Member>
  void end(Context& context, HiddenRows<Context, T>& hidden, const std::vector<Member>& members) {
    kept_.clear();
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      if (!members[s].joined) continue;
      for (Index i = 0; i < sequences_[s].count; ++i) kept_.push_back(sequences_[s].target + i);
    }
    clear();
    hidden.keep(context, kept_);
  }

 private:
  std::vector<KeptRows> sequences_;
  std::vector<Index> row_indptr_;
  std::vector<Index> kept_;  // of the batch, in `end`
};

}  // namespace lazyllm::detail
