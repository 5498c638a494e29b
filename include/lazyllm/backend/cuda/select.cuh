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

/// Writes the tasks and masks to `host`, for `device`. Returns how many kept indices there may be.
inline Index write_tasks(std::span<const SelectionTask> tasks, const SelectionLayout& layout, std::byte* host,
                         std::byte* device) {
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
    max_kept += task.top_p ? keys : keys - open + wanted;
  }
  return max_kept;
}

}  // namespace detail

/// Chooses by score which keys of each task stay active, the same ones as every backend, and writes them to `kept`. All
/// tasks together are one copy to the device, one kernel and one copy back, which is waited for. Throws `cuda_error`.
inline void select_tokens(Context& context, std::span<const SelectionTask> tasks, KeptTokens& kept) {
  kept.indices.clear();
  kept.indptr.assign(1, 0);
  kept.bad.clear();
  if (tasks.empty()) return;
  const detail::SelectionLayout layout(tasks);
  std::byte* const device = context.workspace(layout.bytes);
  Index max_kept = 0;
  context.upload(device, layout.uploaded,
                 [&](std::byte* host) { max_kept = detail::write_tasks(tasks, layout, host, device); });
  // A thread for about every fourth key: one block has to hide the latency of its own loads.
  const auto threads = static_cast<unsigned>(std::clamp<std::size_t>(
      std::bit_ceil(static_cast<std::size_t>(layout.max_keys) / 4), 32, detail::max_selecting_threads));
  detail::launch(context, dim3(static_cast<unsigned>(tasks.size())), threads,
                 detail::select_kept<detail::DeviceSelectionTask>,
                 detail::at<const detail::DeviceSelectionTask>(device, layout.tasks),
                 detail::at<detail::SelectionResult>(device, layout.results), detail::at<int>(device, layout.kept));

  // Where counts were known, no more indices than are kept.
  const Index bytes = layout.kept - layout.results + max_kept * static_cast<Index>(sizeof(int));
  std::byte* const host = context.fetch(bytes, [&](std::byte* pinned) {
    detail::check(cudaMemcpyAsync(pinned, device + layout.results, static_cast<std::size_t>(bytes),
                                  cudaMemcpyDeviceToHost, context.stream()),
                  "cudaMemcpyAsync");
  });
  const auto* const results = detail::at<const detail::SelectionResult>(host, 0);
  const int* const indices = detail::at<const int>(host, layout.kept - layout.results);
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    const int* const first = indices + results[t].first_kept;
    kept.indices.insert(kept.indices.end(), first, first + results[t].kept);
    kept.indptr.push_back(std::ssize(kept.indices));
    kept.bad.push_back(results[t].bad);
  }
}

}  // namespace lazyllm::cuda
