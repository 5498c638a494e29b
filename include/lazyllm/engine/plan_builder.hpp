#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "lazyllm/engine/layer_plan.hpp"

namespace lazyllm::detail {

/// Makes plans: rows and keys are appended sequence by sequence.
class PlanBuilder {
 public:
  /// The plan of one layer of `layers`; valid until the builder changes.
  LayerPlan layer(Index layer, Index layers, bool scores_wanted = false) const {
    return {lists_, layer, layers, scores_wanted};
  }

  /// Empties the lists and keeps their memory.
  void clear() {
    for (auto* list : {&lists_.positions, &lists_.keys, &lists_.key_limits}) list->clear();
    for (auto* list : {&lists_.row_indptr, &lists_.key_indptr}) list->assign(1, 0);
    for (auto* list : {&lists_.tokens, &lists_.outputs}) list->clear();
    lists_.masks.clear();
  }

  void append_row(Position position) { lists_.positions.push_back(position); }  ///< ascending within a sequence
  /// Ascending within a sequence.
  void append_keys(Positions positions) { lists_.keys.insert(lists_.keys.end(), positions.begin(), positions.end()); }

  /// Appends the rows [first, last).
  void append_rows(Index first, Index last) { append_range(lists_.positions, first, last); }
  /// Appends the keys [first, last).
  void append_keys(Index first, Index last) { append_range(lists_.keys, first, last); }

  /// Closes a sequence of `tokens` tokens after its keys and rows have been appended. Every row must be among the keys.
  void finish_sequence(Index tokens, Index outputs) {
    lists_.tokens.push_back(tokens);
    lists_.outputs.push_back(outputs);
    const Positions rows = Positions(lists_.positions).subspan(to_size(lists_.row_indptr.back()));
    const Positions keys = Positions(lists_.keys).subspan(to_size(lists_.key_indptr.back()));
    const Index before = std::ssize(keys) - std::ssize(rows);
    if (rows.empty() || rows.front() == keys[to_size(before)]) {
      append_range(lists_.key_limits, before + 1, before + 1 + std::ssize(rows));
      lists_.masks.push_back(before == 0 ? Mask::causal : Mask::suffix_causal);
    } else {
      for (const Position row : rows) {
        const auto after = std::upper_bound(keys.begin(), keys.end(), row);
        lists_.key_limits.push_back(static_cast<Position>(after - keys.begin()));
      }
      lists_.masks.push_back(Mask::ragged_causal);
    }
    lists_.row_indptr.push_back(std::ssize(lists_.positions));
    lists_.key_indptr.push_back(std::ssize(lists_.keys));
  }

  /// Makes room for `sequences` sequences with `tokens` tokens in all, at least doubling a list that must grow.
  void reserve(Index sequences, Index tokens) {
    for (auto* list : {&lists_.positions, &lists_.keys, &lists_.key_limits}) grow(*list, tokens);
    for (auto* list : {&lists_.row_indptr, &lists_.key_indptr, &lists_.tokens, &lists_.outputs}) {
      grow(*list, sequences + 1);
    }
    grow(lists_.masks, sequences);
  }

  std::span<const Index> row_indptr() const { return lists_.row_indptr; }  ///< `[sequences + 1]`
  Index row_count() const { return std::ssize(lists_.positions); }         ///< rows so far
  Index key_count() const { return std::ssize(lists_.keys); }              ///< keys so far

 private:
  template <class T>
  static void grow(std::vector<T>& list, Index count) {
    const auto size = to_size(count);
    if (size > list.capacity()) list.reserve(std::max(size, 2 * list.capacity()));
  }

  static void append_range(std::vector<Position>& list, Index first, Index last) {
    const std::size_t old_size = list.size();
    list.resize(old_size + to_size(last - first));
    Position* end = list.data() + old_size;
    for (Index value = first; value < last; ++value) *end++ = static_cast<Position>(value);
  }

  PlanLists lists_;
};

}  // namespace lazyllm::detail
