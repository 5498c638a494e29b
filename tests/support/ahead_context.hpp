#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "lazyllm/lazyllm.hpp"

namespace lazyllm::test {

/// The CPU backend as one that goes on while a selection is under way, as on CUDA; it selects at once.
struct AheadContext : cpu::Context {
  struct PendingSelection {
    void reserve(AheadContext&, Index tasks, Index keys) {
      by_number.reserve(detail::to_size(tasks));
      kept.indices.reserve(detail::to_size(keys));
      targets.reserve(detail::to_size(keys));
      kept.indptr.reserve(detail::to_size(tasks + 1));
      kept.bad.reserve(detail::to_size(tasks));
    }
    Index count(Index task) const {
      const auto t = detail::to_size(task);
      return by_number[t] != 0 ? std::ssize(kept.of(t)) : -1;
    }

    std::vector<std::uint8_t> by_number;  // by task
    KeptTokens kept;
    std::vector<Index> targets;  // rows of a sequence, counted
  };
};

inline void begin_selection(AheadContext& context, std::span<const SelectionTask> tasks,
                            AheadContext::PendingSelection& selection) {
  selection.by_number.clear();
  for (const SelectionTask& task : tasks) selection.by_number.push_back(!task.top_p && task.revives.empty());
  cpu::select_tokens(context, tasks, selection.kept);
}

template <class T>
void copy_kept_rows(AheadContext& context, AheadContext::PendingSelection& selection, RowsView<const T> source,
                    RowsView<T> target, std::span<const KeptRows> rows) {
  std::vector<Index>& targets = selection.targets;
  for (const KeptRows& part : rows) {
    targets.resize(detail::to_size(part.count));
    std::iota(targets.begin(), targets.end(), Index{0});
    const std::span<const Index> from =
        part.task < 0 ? std::span<const Index>(targets) : selection.kept.of(detail::to_size(part.task));
    const RowsView<const T> own(source.data + part.first_row * source.stride, source.rows - part.first_row,
                                source.width, source.stride);
    copy_rows(context, own, from, target.subrows(part.target, part.count), std::span<const Index>(targets));
  }
}

inline void end_selection(AheadContext&, AheadContext::PendingSelection& selection, KeptTokens& kept) {
  kept = selection.kept;
}

static_assert(SelectsAhead<AheadContext>);

}  // namespace lazyllm::test
