#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "lazyllm/backend/cuda/block.cuh"
#include "lazyllm/backend/cuda/context.hpp"
#include "lazyllm/backend/cuda/launch.cuh"
#include "lazyllm/core/host_device.hpp"
#include "lazyllm/policy/score_order.hpp"
#include "lazyllm/policy/selection.hpp"

namespace lazyllm::cuda {

namespace detail {

/// The scores of a task that are drawn at random, or pooled, before the selection.
struct RankTask {
  const float* scores;     // to pool
  const Position* active;  // null where the keys are the first positions; to draw
  std::uint64_t seed;
  int keys;
  int reach;  // of pooling, to both sides; 0 to draw at random
  std::uint32_t first;
};

/// Writes rank i of all such tasks.
struct WriteRank {
  const RankTask* tasks;
  int count;
  float* ranks;

  LAZYLLM_HOST_DEVICE void operator()(std::uint32_t i) const {
    const RankTask& task = task_of(tasks, count, &RankTask::first, i);
    const auto key = static_cast<int>(i - task.first);
    ranks[i] = task.reach > 0
                   ? pooled(task, key)
                   : lazyllm::detail::random_score(task.seed, task.active == nullptr ? key : task.active[key]);
  }

  LAZYLLM_HOST_DEVICE static float pooled(const RankTask& task, int key) {
    const int first = key > task.reach ? key - task.reach : 0;
    const int last = task.keys - key > task.reach ? key + task.reach : task.keys - 1;
    float highest = task.scores[key];
    for (int j = first; j <= last; ++j) {
      if (task.scores[j] > highest) highest = task.scores[j];
    }
    return highest;  // a NaN stays one: no comparison with it is true
  }
};

/// A task as the device needs it. Its keys [open_first, open_last) compete, but for those that the mask protects; the
/// others are kept.
struct DeviceTask {
  const float* scores;
  const std::uint8_t* mask;  // `[open_last - open_first]`, or null
  double mass;               // negative to select by count
  Index first_kept;          // where its kept indices go
  int keys;
  int open_first;
  int open_last;
  int wanted;  // by count: how many of the open ones

  LAZYLLM_HOST_DEVICE bool open(int i) const {
    return i >= open_first && i < open_last && (mask == nullptr || mask[i - open_first] == 0);
  }
};

struct TaskResult {
  int bad;   // the first score that is not finite, or -1
  int kept;  // how many
};

/// Which of the open keys are kept: those above `key`, and the first `equals` of those equal to it.
struct Threshold {
  std::uint32_t key;
  int equals;
};

/// The highest open keys whose weights add up to `wanted`, of which there is as much. A radix search from the highest
/// digit down.
template <class Weight, class WeightOf>
__device__ Threshold find_threshold(const DeviceTask& task, Weight wanted, const WeightOf& weight_of) {
  constexpr int bins = 2048;
  __shared__ Weight histogram[bins];
  __shared__ std::uint32_t digit;
  __shared__ Weight left;
  std::uint32_t key = 0;
  std::uint32_t fixed = 0;  // the digits of the key that are known
  constexpr int shifts[] = {21, 10, 0};
  for (const int shift : shifts) {
    const std::uint32_t digit_mask = shift == 0 ? 1023 : 2047;
    for (int bin = thread(); bin < bins; bin += threads()) histogram[bin] = 0;
    __syncthreads();
    for (int i = task.open_first + thread(); i < task.open_last; i += threads()) {
      if (!task.open(i)) continue;
      const std::uint32_t candidate = lazyllm::detail::sort_key(task.scores[i]);
      if ((candidate & fixed) == key) {
        atomicAdd(&histogram[candidate >> shift & digit_mask], weight_of(task.scores[i]));
      }
    }
    __syncthreads();
    // Each thread has some neighbouring bins, the first thread the highest.
    const int per_thread = bins / threads();
    const int highest = bins - 1 - thread() * per_thread;
    Weight sum = 0;
    for (int bin = highest; bin > highest - per_thread; --bin) sum += histogram[bin];
    Weight above = sum_before(sum);
    if (above < wanted && above + sum >= wanted) {
      int bin = highest;
      for (; above + histogram[bin] < wanted; --bin) above += histogram[bin];
      digit = static_cast<std::uint32_t>(bin);
      left = wanted - above;
    }
    __syncthreads();
    key |= digit << shift;
    fixed |= digit_mask << shift;
    wanted = left;
  }
  // Equal scores have equal weights.
  const Weight each = weight_of(lazyllm::detail::score_of(key));
  return {key, static_cast<int>((wanted + each - 1) / each)};
}

using Units = unsigned long long;  // what atomicAdd takes

/// The threshold of a task by mass.
__device__ inline Threshold mass_threshold(const DeviceTask& task, float highest) {
  const lazyllm::detail::ScoreUnits units(highest, task.keys);
  std::int64_t open = 0;
  std::int64_t held = 0;  // by the protected keys
  for (int i = thread(); i < task.keys; i += threads()) {
    (task.open(i) ? open : held) += units.of(task.scores[i]);
  }
  open = block_sum(open);
  held = block_sum(held);
  const std::int64_t wanted = units.share(task.mass, open + held) - held;
  if (wanted <= 0) return {UINT32_MAX, 0};
  if (wanted > open) return {0, 0};  // all of them: no score's key is 0
  return find_threshold(task, static_cast<Units>(wanted),
                        [&units](float score) { return static_cast<Units>(units.of(score)); });
}

/// Writes the kept keys in ascending order and returns their number.
__device__ inline int write_kept(const DeviceTask& task, const Threshold& threshold, int* kept) {
  __shared__ int warp_totals[warp_size];
  int sure_before = 0;  // in earlier rounds: kept whatever the other keys
  int equal_before = 0;
  for (int first = 0; first < task.keys; first += threads()) {
    const int i = first + thread();
    bool sure = false;
    bool equal = false;
    if (i < task.keys) {
      const std::uint32_t key = lazyllm::detail::sort_key(task.scores[i]);
      sure = !task.open(i) || key > threshold.key;
      equal = !sure && key == threshold.key;
    }
    const std::uint32_t sure_votes = __ballot_sync(whole_warp, sure);
    const std::uint32_t equal_votes = __ballot_sync(whole_warp, equal);
    if (lane() == 0) warp_totals[warp()] = __popc(sure_votes) | __popc(equal_votes) << 16;
    __syncthreads();
    const std::uint32_t lanes_before = (1U << lane()) - 1;
    int sure_rank = sure_before + __popc(sure_votes & lanes_before);
    int equal_rank = equal_before + __popc(equal_votes & lanes_before);
    for (int w = 0; w < warps(); ++w) {
      const int sures = warp_totals[w] & 0xffff;
      const int equals = warp_totals[w] >> 16;
      if (w < warp()) {
        sure_rank += sures;
        equal_rank += equals;
      }
      sure_before += sures;
      equal_before += equals;
    }
    if (sure || (equal && equal_rank < threshold.equals)) {
      kept[sure_rank + (equal_rank < threshold.equals ? equal_rank : threshold.equals)] = i;
    }
    __syncthreads();
  }
  return sure_before + (equal_before < threshold.equals ? equal_before : threshold.equals);
}

inline constexpr int most_selecting_threads = 1024;

/// One block for each task.
template <class Task>
__global__ void __launch_bounds__(most_selecting_threads)
    select_kept(const Task* tasks, TaskResult* results, int* kept) {
  const Task task = tasks[blockIdx.x];
  TaskResult& result = results[blockIdx.x];
  int bad = task.keys;
  float highest = 0;
  for (int i = task.keys - 1 - thread(); i >= 0; i -= threads()) {
    const float score = task.scores[i];
    if (!lazyllm::detail::is_finite(score)) bad = i;
    highest = fmaxf(highest, fabsf(score));
  }
  bad = block_min(bad);
  if (bad < task.keys) {
    if (thread() == 0) result = {bad, 0};
    return;
  }
  Threshold threshold;
  if (task.mass >= 0) {
    threshold = mass_threshold(task, block_max(highest));
  } else if (task.wanted > 0) {
    threshold = find_threshold(task, static_cast<unsigned>(task.wanted), [](float) { return 1U; });
  } else {
    threshold = {UINT32_MAX, 0};
  }
  const int count = write_kept(task, threshold, kept + task.first_kept);
  if (thread() == 0) result = {-1, count};
}

/// The part of a task's keys, as indices, that neither its first nor its last positions protect.
struct OpenRange {
  int first;
  int last;
};

inline OpenRange open_range(const SelectionTask& task) {
  const Positions active = task.active;
  const auto first = std::ranges::lower_bound(active, task.selection.protect_first);
  const auto last = std::ranges::lower_bound(first, active.end(), task.tokens - task.selection.protect_last);
  return {static_cast<int>(first - active.begin()), static_cast<int>(last - active.begin())};
}

inline bool by_mass(const SelectionTask& task) { return task.selection.kind == Selection::Kind::mass; }
inline bool at_random(const SelectionTask& task) { return task.selection.random_seed.has_value(); }

/// Whether the task does not select by the scores as they are.
inline bool has_ranks(const SelectionTask& task) { return at_random(task) || task.pooling > 1; }

/// How one piece of memory holds what is uploaded, the ranks, and what comes back: the results and kept indices.
struct SelectionLayout {
  explicit SelectionLayout(std::span<const SelectionTask> task_list) {
    const Index count = std::ssize(task_list);
    Index mask_bytes = 0;
    Index keys = 0;
    for (const SelectionTask& task : task_list) {
      const OpenRange range = open_range(task);
      const Index task_keys = std::ssize(task.active);
      if (!task.selection.protect_mask.empty()) mask_bytes += range.last - range.first;
      if (has_ranks(task)) {
        ++rank_task_count;
        rank_count += task_keys;
      }
      if (at_random(task) && !is_prefix(task.active)) active_count += task_keys;
      keys += task_keys;
      longest = std::max(longest, task_keys);
    }
    Layout layout;
    tasks = layout.add<DeviceTask>(count);
    rank_tasks = layout.add<RankTask>(rank_task_count);
    active = layout.add<Position>(active_count);
    masks = layout.add<std::uint8_t>(mask_bytes);
    uploaded = layout.bytes();
    ranks = layout.add<float>(rank_count);
    results = layout.add<TaskResult>(count);
    kept = layout.add<int>(keys);
    bytes = layout.bytes();
  }

  Index tasks = 0;
  Index rank_tasks = 0;
  Index active = 0;
  Index masks = 0;
  Index uploaded = 0;  // bytes
  Index ranks = 0;
  Index results = 0;
  Index kept = 0;
  Index bytes = 0;
  Index rank_task_count = 0;
  Index rank_count = 0;
  Index active_count = 0;
  Index longest = 0;  // keys of a task
};

/// Writes the tasks whose scores are drawn or pooled, with their active tokens, to `host`, for `device`.
inline void write_rank_tasks(std::span<const SelectionTask> tasks, const SelectionLayout& layout, std::byte* host,
                             std::byte* device) {
  auto* rank_task = at<RankTask>(host, layout.rank_tasks);
  Index next_active = layout.active;
  std::uint32_t first = 0;
  for (const SelectionTask& task : tasks) {
    if (!has_ranks(task)) continue;
    const bool list = at_random(task) && !is_prefix(task.active);
    *rank_task++ = {
        .scores = task.scores.data(),
        .active = list ? at<const Position>(device, next_active) : nullptr,
        .seed = task.selection.random_seed.value_or(0),
        .keys = static_cast<int>(task.active.size()),
        .reach = at_random(task) ? 0 : static_cast<int>(std::min(task.pooling / 2, std::ssize(task.active))),
        .first = first};
    first += static_cast<std::uint32_t>(task.active.size());
    if (!list) continue;
    std::memcpy(host + next_active, task.active.data(), task.active.size_bytes());
    next_active += static_cast<Index>(task.active.size_bytes());
  }
}

/// Writes the tasks and masks to `host`, for `device`. Returns how many kept indices there may be.
inline Index write_tasks(std::span<const SelectionTask> tasks, const SelectionLayout& layout, std::byte* host,
                         std::byte* device) {
  Index mask_end = layout.masks;
  Index first_kept = 0;
  const float* next_rank = at<const float>(device, layout.ranks);
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    const SelectionTask& task = tasks[t];
    const OpenRange range = open_range(task);
    int open = range.last - range.first;
    const std::uint8_t* device_mask = nullptr;
    if (!task.selection.protect_mask.empty()) {
      device_mask = at<std::uint8_t>(device, mask_end);
      for (int i = range.first; i < range.last; ++i) {
        const bool is_protected = task.selection.protects(task.active[static_cast<std::size_t>(i)], task.tokens);
        *at<std::uint8_t>(host, mask_end++) = is_protected;
        open -= is_protected;
      }
    }
    const auto keys = static_cast<int>(task.active.size());
    const auto wanted = static_cast<int>(std::clamp<Index>(task.selection.count - (keys - open), 0, open));
    at<DeviceTask>(host, layout.tasks)[t] = {.scores = has_ranks(task) ? next_rank : task.scores.data(),
                                             .mask = device_mask,
                                             .mass = by_mass(task) ? task.selection.mass : -1,
                                             .first_kept = first_kept,
                                             .keys = keys,
                                             .open_first = range.first,
                                             .open_last = range.last,
                                             .wanted = wanted};
    first_kept += by_mass(task) ? keys : keys - open + wanted;
    if (has_ranks(task)) next_rank += keys;
  }
  return first_kept;
}

}  // namespace detail

/// Chooses by score which of the active tokens of each task stay active, the same ones as every backend, and writes
/// them to `kept`. All tasks together are one copy to the device, one kernel, another where scores are drawn or pooled,
/// and one copy back, which is waited for. Throws `cuda_error`.
/// \return the first score that is not finite, if there is one, and then `kept` is not to be used
inline std::optional<BadScore> select(Context& context, std::span<const SelectionTask> tasks, KeptTokens& kept) {
  kept.indices.clear();
  kept.indptr.assign(1, 0);
  if (tasks.empty()) return std::nullopt;
  const detail::SelectionLayout layout(tasks);
  std::byte* const device = context.workspace(layout.bytes);
  Index most_kept = 0;
  context.upload(device, layout.uploaded, [&](std::byte* host) {
    most_kept = detail::write_tasks(tasks, layout, host, device);
    detail::write_rank_tasks(tasks, layout, host, device);
  });
  if (layout.rank_count > 0) {
    detail::for_each(
        context, static_cast<std::uint32_t>(layout.rank_count),
        detail::WriteRank{detail::at<const detail::RankTask>(device, layout.rank_tasks),
                          static_cast<int>(layout.rank_task_count), detail::at<float>(device, layout.ranks)});
  }
  const auto threads = static_cast<unsigned>(std::clamp<std::size_t>(
      std::bit_ceil(static_cast<std::size_t>(layout.longest) / 4), 32, detail::most_selecting_threads));
  detail::launch(context, dim3(static_cast<unsigned>(tasks.size())), threads, detail::select_kept<detail::DeviceTask>,
                 detail::at<const detail::DeviceTask>(device, layout.tasks),
                 detail::at<detail::TaskResult>(device, layout.results), detail::at<int>(device, layout.kept));

  // The results and, where counts were known, no more indices than there are.
  const Index bytes = layout.kept - layout.results + most_kept * static_cast<Index>(sizeof(int));
  std::byte* const host = context.results(bytes);
  detail::check(cudaMemcpyAsync(host, device + layout.results, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost,
                                context.stream()),
                "cudaMemcpyAsync");
  context.synchronize();
  const auto* const results = detail::at<const detail::TaskResult>(host, 0);
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    if (results[t].bad >= 0) return BadScore{t, results[t].bad};
  }
  const int* next = detail::at<const int>(host, layout.kept - layout.results);
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    kept.indices.insert(kept.indices.end(), next, next + results[t].kept);
    kept.indptr.push_back(std::ssize(kept.indices));
    next += detail::by_mass(tasks[t]) ? std::ssize(tasks[t].active) : results[t].kept;
  }
  return std::nullopt;
}

}  // namespace lazyllm::cuda
