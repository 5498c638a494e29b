#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lazyllm/backend/cuda/context.hpp"
#include "lazyllm/backend/cuda/launch.cuh"
#include "lazyllm/backend/cuda/layout.hpp"
#include "lazyllm/backend/cuda/select_kernels.cuh"
#include "lazyllm/backend/operations.hpp"
#include "lazyllm/engine/positions.hpp"

namespace lazyllm::cuda {

namespace detail {

/// The part of a task's keys, as indices, that neither their positions nor `protect_from` protect.
struct OpenRange {
  explicit OpenRange(const SelectionTask& task) {
    const auto begin = std::ranges::lower_bound(task.keys, task.protect_before);
    const auto end = std::ranges::lower_bound(begin, task.keys.end(), task.protect_from);
    first = static_cast<int>(begin - task.keys.begin());
    last = static_cast<int>(end - task.keys.begin());
  }

  int first;
  int last;
};

/// How one piece of memory holds what is uploaded, and what comes back: the results and kept indices.
struct SelectionLayout {
  explicit SelectionLayout(std::span<const SelectionTask> task_list) {
    Index mask_bytes = 0;
    Index keys = 0;
    for (const SelectionTask& task : task_list) {
      const OpenRange range(task);
      if (needs_mask(task)) mask_bytes += range.last - range.first;
      keys += std::ssize(task.keys);
      max_keys = std::max(max_keys, std::ssize(task.keys));
    }
    Layout layout;
    tasks = layout.add<DeviceSelectionTask>(std::ssize(task_list));
    masks = layout.add<std::uint8_t>(mask_bytes);
    uploaded = layout.bytes();
    results = layout.add<SelectionResult>(std::ssize(task_list));
    kept = layout.add<int>(keys);
    bytes = layout.bytes();
  }

  static bool needs_mask(const SelectionTask& task) { return !task.protect_mask.empty() || !task.revives.empty(); }

  Index tasks;
  Index masks;
  Index uploaded;  // bytes
  Index results;
  Index kept;
  Index bytes;
  Index max_keys = 0;  // of a task
};

/// Writes the tasks and masks to `host`, for `device`. Returns how many kept indices there may be. Calls
/// `counted(count)` for each task with the number of its kept keys, or -1 where that is not known.
template <class Counted>
Index write_tasks(std::span<const SelectionTask> tasks, const SelectionLayout& layout, std::byte* host,
                  std::byte* device, const Counted& counted) {
  Index next_mask = layout.masks;
  Index max_kept = 0;
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    const SelectionTask& task = tasks[t];
    const OpenRange range(task);
    const auto keys = static_cast<int>(task.keys.size());
    int open = range.last - range.first;
    const std::uint8_t* device_mask = nullptr;
    Index revived = 0;  // protected keys that are revived whatever the limit
    if (SelectionLayout::needs_mask(task)) {
      device_mask = at<const std::uint8_t>(device, next_mask);
      for (int i = 0; i < keys; ++i) {
        const auto key = lazyllm::detail::to_size(i);
        const bool is_protected = task.protects(task.keys[key]);
        const bool revives = !task.revives.empty() && task.revives[key] != 0;
        revived += is_protected && revives;
        if (i < range.first || i >= range.last) continue;
        *at<std::uint8_t>(host, next_mask++) = static_cast<std::uint8_t>(
            (is_protected ? DeviceSelectionTask::is_protected : 0) | (revives ? DeviceSelectionTask::is_revived : 0));
        open -= is_protected;
      }
    }
    const Index limit = task.revives.empty() ? -1 : std::clamp<Index>(task.max_revived - revived, 0, keys);
    const auto wanted = static_cast<int>(std::clamp<Index>(task.k - (keys - open), 0, open));
    at<DeviceSelectionTask>(host, layout.tasks)[t] = {.scores = task.scores.data(),
                                                      .mask = device_mask,
                                                      .share = task.top_p ? task.p : -1,
                                                      .first_kept = max_kept,
                                                      .keys = keys,
                                                      .open_first = range.first,
                                                      .open_last = range.last,
                                                      .wanted = wanted,
                                                      .max_revived = limit};
    const Index most = task.top_p ? keys : keys - open + wanted;
    counted(task.top_p || limit >= 0 ? -1 : most);
    max_kept += most;
  }
  return max_kept;
}

/// Enqueues the selection in `device` memory. Returns the bytes of its answer, which begins with the results.
template <class Counted>
Index enqueue_selection(Context& context, std::span<const SelectionTask> tasks, const SelectionLayout& layout,
                        std::byte* device, const Counted& counted) {
  Index max_kept = 0;
  context.upload(device, layout.uploaded,
                 [&](std::byte* host) { max_kept = write_tasks(tasks, layout, host, device, counted); });
  // A thread for about every fourth key: one block has to hide the latency of its own loads.
  const auto threads = static_cast<unsigned>(
      std::clamp<std::size_t>(std::bit_ceil(static_cast<std::size_t>(layout.max_keys) / 4), 32, max_selecting_threads));
  launch(context, dim3(static_cast<unsigned>(tasks.size())), threads, select_kept<DeviceSelectionTask>,
         at<const DeviceSelectionTask>(device, layout.tasks), at<SelectionResult>(device, layout.results),
         at<int>(device, layout.kept));
  // Where counts were known, no more indices than are kept.
  return layout.kept - layout.results + max_kept * static_cast<Index>(sizeof(int));
}

/// Enqueues the copy of the answer to pinned memory.
inline void copy_answer(Context& context, std::byte* pinned, const std::byte* answer, Index bytes) {
  check(cudaMemcpyAsync(pinned, answer, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, context.stream()),
        "cudaMemcpyAsync");
}

/// What the answer says of `tasks` tasks, the kept indices `kept_offset` bytes behind it.
inline void read_answer(std::byte* answer, Index tasks, Index kept_offset, KeptTokens& kept) {
  kept.indices.clear();
  kept.indptr.assign(1, 0);
  kept.bad.clear();
  const auto* const results = at<const SelectionResult>(answer, 0);
  const int* const indices = at<const int>(answer, kept_offset);
  for (Index t = 0; t < tasks; ++t) {
    const int* const first = indices + results[t].first_kept;
    kept.indices.insert(kept.indices.end(), first, first + results[t].kept);
    kept.indptr.push_back(std::ssize(kept.indices));
    kept.bad.push_back(results[t].bad);
  }
}

}  // namespace detail

/// Chooses by score which keys of each task stay active, the same ones as every backend, and writes them to `kept`. All
/// tasks together are one copy to the device, one kernel and one copy back, which is waited for. Throws `cuda_error`.
inline void select_tokens(Context& context, std::span<const SelectionTask> tasks, KeptTokens& kept) {
  if (tasks.empty()) return detail::read_answer(nullptr, 0, 0, kept);
  const detail::SelectionLayout layout(tasks);
  std::byte* const device = context.workspace(layout.bytes);
  const Index bytes = detail::enqueue_selection(context, tasks, layout, device, [](Index) {});
  std::byte* const answer = context.fetch(
      bytes, [&](std::byte* pinned) { detail::copy_answer(context, pinned, device + layout.results, bytes); });
  detail::read_answer(answer, std::ssize(tasks), layout.kept - layout.results, kept);
}

}  // namespace lazyllm::cuda
