#pragma once

#include <cuda_runtime_api.h>
#include <thrust/for_each.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/zip_iterator.h>
#include <thrust/transform.h>
#include <thrust/tuple.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "lazyllm/backend/cuda/context.hpp"
#include "lazyllm/backend/cuda/launch.cuh"
#include "lazyllm/backend/cuda/layout.hpp"
#include "lazyllm/backend/cuda/score_kernels.cuh"
#include "lazyllm/backend/operations.hpp"
#include "lazyllm/backend/score_order.hpp"
#include "lazyllm/engine/host_device.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/engine/queries.hpp"

namespace lazyllm::cuda {

namespace detail {

/// The least number of whole warps that have `threads` threads, as far as a block may.
inline unsigned whole_warps(Index threads) {
  return static_cast<unsigned>(
      std::clamp<Index>((threads + warp_size - 1) / warp_size * warp_size, warp_size, max_block_threads));
}

/// Keys of a part: enough parts to fill the device. It depends on the number of keys alone, so that results are the
/// same on every device and in every batch.
inline Index keys_per_part(Index keys) {
  constexpr Index max_parts = 128;
  constexpr Index max_keys = 1024;
  return std::clamp<Index>((keys + max_parts - 1) / max_parts, 128, max_keys);
}

inline Index part_count(Index keys) { return (keys + keys_per_part(keys) - 1) / keys_per_part(keys); }

/// Whether the keys of a task have a list on the device of their own: they are not the first positions, and not those
/// of the task before it.
inline bool has_own_list(Positions keys, Positions before) {
  return !is_prefix(keys) && (keys.data() != before.data() || keys.size() != before.size());
}

/// What score tasks need that are done together: those from `first` to `end`. They are as many as have `max_logits`
/// logits for a row of each, at least one.
struct ScoreExtent {
  template <class TaskOf>
  ScoreExtent(Index heads, Index first, Index count, Index max_logits, const TaskOf& task_of) : end(first) {
    constexpr Index max_rows = 8;
    Positions before;
    for (; end < count; ++end) {
      const auto task = task_of(end);
      const Index keys = std::ssize(task.keys);
      if (end > first && heads * (all_keys + keys) > max_logits) break;
      limits += std::ssize(task.limits);
      listed_keys += has_own_list(task.keys, before) ? keys : 0;
      before = task.keys;
      all_keys += keys;
      parts += part_count(keys);
      rows = std::max(rows, std::ssize(task.limits));
      max_keys = std::max(max_keys, keys);
      max_group = std::max<Index>(max_group, heads / task.key_view.kv_heads);
    }
    rows_per_launch = std::min(rows, std::clamp<Index>(max_logits / (heads * all_keys), 1, max_rows));
  }

  Index end;              // behind the last task
  Index limits = 0;       // in all lists
  Index listed_keys = 0;  // in all lists
  Index all_keys = 0;
  Index parts = 0;
  Index rows = 0;      // of the task that has most
  Index max_keys = 0;  // of a task
  Index max_group = 1;
  Index rows_per_launch = 0;
};

template <int tile, class T, class Keys>
void launch_partial(Context& context, const QueryRows<T>& queries, const DeviceScoreTask<Keys>* tasks, Index count,
                    RowRange range, Index max_keys, Index blocks) {
  const Index chunks = (queries.head_dim + chunk_size<T> - 1) / chunk_size<T>;
  const auto lanes = std::min(static_cast<Index>(std::bit_ceil(static_cast<std::size_t>(chunks))), Index{warp_size});
  launch(context, dim3(static_cast<unsigned>(blocks)),
         whole_warps(std::min(keys_per_part(max_keys), max_keys) * lanes / keys_per_group),
         partial_softmax<tile, T, Keys>, queries, tasks, static_cast<int>(count), range, static_cast<int>(lanes));
}

/// Enqueues the tasks from `first` on that `extent` is of.
template <class T, class TaskOf>
void score_together(Context& context, const QueryRows<T>& queries, Index first, const ScoreExtent& extent,
                    const TaskOf& task_of) {
  using Keys = std::remove_cvref_t<decltype(task_of(Index{}).key_view)>;
  using Task = DeviceScoreTask<Keys>;
  const Index count = extent.end - first;
  const Index softmaxes = extent.rows_per_launch * queries.heads;
  Layout layout;
  const Index tasks = layout.add<Task>(count);
  Index next_limits = layout.add<Position>(extent.limits);
  Index next_keys = layout.add<Position>(extent.listed_keys);
  const Index uploaded = layout.bytes();
  Index next_logits = layout.add<float>(softmaxes * extent.all_keys);
  Index next_parts = layout.add<PartialSoftmax>(softmaxes * extent.parts);
  std::byte* const memory = context.workspace(layout.bytes());
  const auto key_threads = static_cast<Index>(whole_warps(extent.max_keys));
  Index part_blocks = 0;
  Index key_blocks = 0;
  context.upload(memory, uploaded, [&](std::byte* host) {
    Positions before;
    const Position* keys_before = nullptr;
    const auto copied = [&](Positions list, Index& next) {
      std::memcpy(host + next, list.data(), list.size_bytes());
      const Position* const device = at<const Position>(memory, next);
      next += static_cast<Index>(list.size_bytes());
      return device;
    };
    for (Index i = 0; i < count; ++i) {
      const auto task = task_of(first + i);
      const Index keys = std::ssize(task.keys);
      const Index parts = part_count(keys);
      if (has_own_list(task.keys, before)) keys_before = copied(task.keys, next_keys);
      before = task.keys;
      at<Task>(host, tasks)[i] = {.key_view = task.key_view,
                                  .keys = is_prefix(task.keys) ? nullptr : keys_before,
                                  .limits = copied(task.limits, next_limits),
                                  .logits = at<float>(memory, next_logits),
                                  .parts = at<PartialSoftmax>(memory, next_parts),
                                  .scores = task.scores.data(),
                                  .first_row = task.first_row,
                                  .rows = static_cast<int>(task.limits.size()),
                                  .count = static_cast<int>(keys),
                                  .keys_per_part = static_cast<int>(keys_per_part(keys)),
                                  .part_count = static_cast<int>(parts),
                                  .first_part_block = static_cast<int>(part_blocks),
                                  .first_key_block = static_cast<int>(key_blocks),
                                  .over_heads = task.over_heads,
                                  .over_rows = task.over_rows};
      next_logits += softmaxes * keys * static_cast<Index>(sizeof(float));
      next_parts += softmaxes * parts * static_cast<Index>(sizeof(PartialSoftmax));
      part_blocks += parts * static_cast<Index>(task.key_view.kv_heads);
      key_blocks += (keys + key_threads - 1) / key_threads;
    }
  });
  const auto* const device_tasks = at<const Task>(memory, tasks);
  for (Index row = 0; row < extent.rows; row += extent.rows_per_launch) {
    const RowRange range{static_cast<int>(row), static_cast<int>(extent.rows_per_launch)};
    const Index queries_of_key = std::min(extent.rows_per_launch, extent.rows - row) * extent.max_group;
    const auto partial = [&](auto launch_tile) {
      launch_tile(context, queries, device_tasks, count, range, extent.max_keys, part_blocks);
    };
    if (queries_of_key == 1) {
      partial(launch_partial<1, T, Keys>);
    } else if (queries_of_key <= 4) {
      partial(launch_partial<4, T, Keys>);
    } else {
      partial(launch_partial<8, T, Keys>);
    }
    launch(context, dim3(static_cast<unsigned>(key_blocks)), static_cast<unsigned>(key_threads), combine_parts<Keys>,
           device_tasks, static_cast<int>(count), range, static_cast<int>(queries.heads));
  }
}

}  // namespace detail

/// Enqueues the computation of the scores of `count` sequences; `task_of(i)` is the `ScoreTask` of the i-th. Its lists
/// are the host's and may be changed when it returns; its scores and keys are on the device. Kernels call `key` of the
/// key view. `queries` is Q of the whole batch, on the device.
///
/// Scratch memory is for `max_logits` logits `[rows x heads x keys]`, which are 128 MiB by default. Where one row of
/// one sequence has more, it is for that row. As far as the memory goes, sequences run in the same launches, and K is
/// read once for up to eight rows. Throws `cuda_error`.
template <class T, class TaskOf>
void attention_scores(Context& context, const QueryRows<T>& queries, Index count, const TaskOf& task_of,
                      Index max_logits = Index{1} << 25) {
  using Keys = std::remove_cvref_t<decltype(task_of(Index{}).key_view)>;
  static_assert(sizeof(typename Keys::value_type) == sizeof(T),
                "lazyllm: on CUDA the elements of Q and K must have one size, as float and float or half and bfloat16; "
                "a block with others needs `token_scores`");
  for (Index first = 0; first < count;) {
    const detail::ScoreExtent extent(queries.heads, first, count, max_logits, task_of);
    detail::score_together(context, queries, first, extent, task_of);
    first = extent.end;
  }
}

namespace detail {

/// A pool task on the device. The scores of all tasks are numbered, those of this one from `first` on.
struct DevicePoolTask {
  const float* scores;
  float* pooled;
  int count;
  int reach;  // to both sides
  std::uint32_t first;
  std::uint32_t unused = 0;
};

/// Pools score i of all tasks.
struct PoolScore {
  const DevicePoolTask* tasks;
  Index count;

  LAZYLLM_HOST_DEVICE void operator()(std::uint32_t i) const {
    const DevicePoolTask& task = task_of(tasks, static_cast<int>(count), &DevicePoolTask::first, i);
    const auto key = static_cast<int>(i - task.first);
    const int first = key > task.reach ? key - task.reach : 0;
    const int last = task.count - key > task.reach ? key + task.reach + 1 : task.count;
    task.pooled[key] = lazyllm::detail::highest_around(task.scores[key], task.scores + first, task.scores + last);
  }
};

/// The sum of a score and the sum so far, for both of them.
struct AddToBoth {
  LAZYLLM_HOST_DEVICE thrust::tuple<float, float> operator()(float score, float sum) const {
    return {sum + score, sum + score};
  }
};

}  // namespace detail

/// Enqueues all `tasks` in one launch, whose work is keys times `pooling`. The list is the host's and may be changed
/// when it returns. Throws `cuda_error`.
inline void pool_scores(Context& context, std::span<const PoolTask> tasks) {
  const auto bytes = static_cast<Index>(tasks.size() * sizeof(detail::DevicePoolTask));
  std::byte* const memory = context.workspace(bytes);
  std::uint32_t scores = 0;
  context.upload(memory, bytes, [&](std::byte* host) {
    auto* next = detail::at<detail::DevicePoolTask>(host, 0);
    for (const PoolTask& task : tasks) {
      *next++ = {.scores = task.scores.data(),
                 .pooled = task.pooled.data(),
                 .count = static_cast<int>(task.scores.size()),
                 .reach = static_cast<int>(std::min(task.pooling / 2, std::ssize(task.scores))),
                 .first = scores};
      scores += static_cast<std::uint32_t>(task.scores.size());
    }
  });
  const detail::PoolScore pool{detail::at<const detail::DevicePoolTask>(memory, 0), std::ssize(tasks)};
  detail::thrust_call(context, scores, [=](const auto& policy) {
    thrust::for_each_n(policy, thrust::counting_iterator<std::uint32_t>(0), scores, pool);
  });
}

/// Enqueues: adds `scores` to `sums`, or sets `sums` to them if `first`, and copies the sums back. All `[keys]`, on the
/// device. Throws `cuda_error`.
inline void accumulate_scores(Context& context, std::span<float> scores, std::span<float> sums, bool first) {
  float* const from = scores.data();
  float* const to = sums.data();
  if (first) {
    detail::check(cudaMemcpyAsync(to, from, scores.size_bytes(), cudaMemcpyDefault, context.stream()),
                  "cudaMemcpyAsync");
  } else {
    const auto count = std::ssize(scores);
    detail::thrust_call(context, count, [=](const auto& policy) {
      thrust::transform(policy, from, from + count, to, thrust::make_zip_iterator(thrust::make_tuple(from, to)),
                        detail::AddToBoth{});
    });
  }
}

}  // namespace lazyllm::cuda
