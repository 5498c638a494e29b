#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lazyllm/backend/cuda/context.hpp"
#include "lazyllm/backend/cuda/layout.hpp"
#include "lazyllm/backend/cuda/rows.cuh"
#include "lazyllm/backend/cuda/select.cuh"
#include "lazyllm/backend/operations.hpp"
#include "lazyllm/engine/host_device.hpp"

/// \file
/// A selection during which the device does not wait for the host: the kept rows are copied, and the work behind them
/// is enqueued, before the answer has come back.

namespace lazyllm::cuda {

/// A selection that is under way, with memory of its own on the device and on the host. Serves one at a time.
class Context::PendingSelection {
 public:
  /// Makes room for `tasks` tasks of `keys` keys in all. Throws `cuda_error` if there is no memory.
  void reserve(Context& context, Index tasks, Index keys) {
    detail::Layout layout;
    layout.add<detail::DeviceSelectionTask>(tasks);
    layout.add<std::uint8_t>(keys);
    layout.add<detail::SelectionResult>(tasks);
    layout.add<int>(keys);
    device_.grow(context.stream(), layout.bytes());
    answer_.grow(context.stream(), layout.bytes());
    counts_.reserve(lazyllm::detail::to_size(tasks));
  }

  /// How many keys task `task` keeps, or -1 where only the device knows.
  Index count(Index task) const { return counts_[lazyllm::detail::to_size(task)]; }

 private:
  friend void begin_selection(Context&, std::span<const SelectionTask>, PendingSelection&);
  friend void end_selection(Context&, PendingSelection&, KeptTokens&);
  template <class T>
  friend void copy_kept_rows(Context&, PendingSelection&, RowsView<const T>, RowsView<T>, std::span<const KeptRows>);

  detail::DeviceMemory device_;  // tasks, masks, results and kept indices
  detail::PinnedMemory answer_;
  detail::Event answered_;
  std::vector<Index> counts_;  // by task
  Index results_ = 0;          // where they begin on the device
  Index kept_ = 0;
};

namespace detail {

/// A `KeptRows` on the device.
struct DeviceKeptRows {
  const SelectionResult* result;  // of its task; null where all rows go on
  const int* kept;                // of all tasks
  Index first_row;
  Index target;
};

/// The places of the rows that go on.
struct PlacesOfKept {
  const DeviceKeptRows* sequences;
  Index count;
  RowsView<const std::byte> source;
  RowsView<std::byte> target;

  LAZYLLM_HOST_DEVICE RowPlaces operator()(Index row) const {
    const DeviceKeptRows& of = task_of(sequences, static_cast<int>(count), &DeviceKeptRows::target, row);
    Index from = row - of.target;
    // The kept indices of a task with a bad score are not written.
    if (of.result != nullptr && of.result->bad < 0) from = of.kept[of.result->first_kept + from];
    return {source.row(of.first_row + from), target.row(row)};
  }
};

/// The bytes of `rows`.
template <class Byte, class T>
RowsView<Byte> bytes_of(RowsView<T> rows) {
  constexpr auto size = static_cast<Index>(sizeof(T));
  return {reinterpret_cast<Byte*>(rows.data), rows.rows, rows.width * size, rows.stride * size};
}

}  // namespace detail

/// Enqueues what `select_tokens` does. `end_selection` gives its answer. Throws `cuda_error`.
inline void begin_selection(Context& context, std::span<const SelectionTask> tasks,
                            Context::PendingSelection& selection) {
  selection.counts_.clear();
  if (tasks.empty()) return;
  const detail::SelectionLayout layout(tasks);
  selection.device_.grow(context.stream(), layout.bytes);
  std::byte* const device = selection.device_.data();
  const Index bytes = detail::enqueue_selection(context, tasks, layout, device,
                                                [&](Index count) { selection.counts_.push_back(count); });
  selection.results_ = layout.results;
  selection.kept_ = layout.kept;
  selection.answer_.grow(context.stream(), bytes);
  detail::copy_answer(context, selection.answer_.data(), device + layout.results, bytes);
  selection.answered_.record(context.stream());
}

/// Enqueues the copies of the kept rows of a selection that has begun, from `source` to `target`, as `rows` says, whose
/// targets ascend without gaps from 0. All are one launch. Throws `cuda_error`.
template <class T>
void copy_kept_rows(Context& context, Context::PendingSelection& selection, RowsView<const T> source,
                    RowsView<T> target, std::span<const KeptRows> rows) {
  Index count = 0;
  for (const KeptRows& part : rows) count += part.count;
  if (count == 0) return;
  const Index bytes = std::ssize(rows) * static_cast<Index>(sizeof(detail::DeviceKeptRows));
  std::byte* const lists = context.workspace(bytes);
  std::byte* const device = selection.device_.data();
  context.upload(lists, bytes, [&](std::byte* host) {
    auto* list = detail::at<detail::DeviceKeptRows>(host, 0);
    for (const KeptRows& part : rows) {
      const auto* const results = detail::at<const detail::SelectionResult>(device, selection.results_);
      *list++ = {part.task < 0 ? nullptr : results + part.task, detail::at<const int>(device, selection.kept_),
                 part.first_row, part.target};
    }
  });
  const detail::PlacesOfKept places{detail::at<const detail::DeviceKeptRows>(lists, 0), std::ssize(rows),
                                    detail::bytes_of<const std::byte>(source), detail::bytes_of<std::byte>(target)};
  detail::copy_aligned(context, detail::alignment_bits(source) | detail::alignment_bits(target), places, count,
                       places.source.width);
}

/// Waits for the selection, and for no work behind it. Writes what is kept to `kept`. Throws `cuda_error`.
inline void end_selection(Context&, Context::PendingSelection& selection, KeptTokens& kept) {
  if (!selection.counts_.empty()) selection.answered_.wait();
  detail::read_answer(selection.answer_.data(), std::ssize(selection.counts_), selection.kept_ - selection.results_,
                      kept);
}

}  // namespace lazyllm::cuda
