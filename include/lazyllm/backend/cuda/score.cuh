#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "lazyllm/backend/cuda/block.cuh"
#include "lazyllm/backend/cuda/context.hpp"
#include "lazyllm/backend/cuda/launch.cuh"
#include "lazyllm/core/host_device.hpp"
#include "lazyllm/importance/queries.hpp"

namespace lazyllm::cuda {

namespace detail {

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

/// Elements of 16 bytes.
template <class T>
inline constexpr int chunk_size = static_cast<int>(sizeof(uint4) / sizeof(T));

/// The `count` elements at `from`, and zeros up to a whole chunk. One access where all of it is there and aligned.
template <class T>
__device__ void load_chunk(const T* from, int count, float (&chunk)[chunk_size<T>]) {
  if (count >= chunk_size<T> && reinterpret_cast<std::uintptr_t>(from) % sizeof(uint4) == 0) {
    const uint4 bits = *reinterpret_cast<const uint4*>(from);
    T values[chunk_size<T>];
    memcpy(static_cast<void*>(values), &bits, sizeof(bits));
#pragma unroll
    for (int i = 0; i < chunk_size<T>; ++i) chunk[i] = to_float(values[i]);
  } else {
#pragma unroll
    for (int i = 0; i < chunk_size<T>; ++i) chunk[i] = i < count ? to_float(from[i]) : 0;
  }
}

/// Of one part of the keys, for one query.
struct PartialSoftmax {
  float highest;
  float sum;  // of exp(logit - highest)
};

/// The scores of one sequence. The keys are cut into parts, whose softmaxes are put together afterwards; the rows are
/// done some at a time.
template <class Keys>
struct DeviceScoreTask {
  Keys keys;
  const Position* active;  // `[count]`, or null where the keys are the first positions
  const Position* limits;  // `[rows]`
  float* logits;           // `[rows at a time x heads x count]`
  PartialSoftmax* parts;   // `[rows at a time x heads x part_count]`
  float* scores;           // `[count]`
  Index first_row;
  int rows;
  int count;
  int part;  // keys of a part
  int part_count;
  int first_part_block;
  int first_key_block;
  Reduce reduce;
};

/// Which rows of each sequence are done now: `[first, first + count)`, as far as there are.
struct RowRange {
  int first;
  int count;

  __device__ int of(int rows) const { return rows - first < count ? rows - first : count; }
};

inline constexpr int most_threads = 256;  // of a block
inline constexpr int keys_at_once = 4;    // of a group of lanes
inline constexpr int longest_part = 1024;

/// One block for each part of the keys and key head: the logits of its keys for all queries of the head, and each
/// query's maximum and sum. A group of `lanes` lanes takes some keys at once, each lane some chunks of them, for `tile`
/// queries at a time; the second and later tiles find these keys in the L1 cache.
template <int tile, class T, class Keys>
__global__ void __launch_bounds__(most_threads, 2)
    partial_softmax(const QueryRows<T> all_queries, const DeviceScoreTask<Keys>* tasks, int task_count,
                    const RowRange range, int lanes) {
  using Key = typename Keys::value_type;
  constexpr int chunk = chunk_size<Key>;
  static_assert(sizeof(Key) == sizeof(T), "queries and keys must be of types of the same size");
  const auto block = static_cast<int>(blockIdx.x);
  const auto& task = task_of(tasks, task_count, &DeviceScoreTask<Keys>::first_part_block, block);
  const Keys keys = task.keys;
  const auto heads = static_cast<int>(all_queries.heads);
  const auto kv_heads = static_cast<int>(keys.heads);
  const int kv_head = (block - task.first_part_block) % kv_heads;
  const int part = (block - task.first_part_block) / kv_heads;
  const int group = heads / kv_heads;
  const int queries = range.of(task.rows) * group;
  const int first = part * task.part;
  const int count = task.count - first < task.part ? task.count - first : task.part;
  const auto width = static_cast<int>(all_queries.head_dim);
  const int step = threads() / lanes * keys_at_once;
  const auto row_of = [&](int query) { return query / group; };
  const auto head_of = [&](int query) { return kv_head * group + query % group; };
  // Where the logits of a query begin, and how many of its part's keys it sees.
  const auto logits_of = [&](int query) {
    return task.logits + (static_cast<Index>(row_of(query)) * heads + head_of(query)) * task.count + first;
  };
  const auto visible_to = [&](int query) { return static_cast<int>(task.limits[range.first + row_of(query)]) - first; };

  for (int begin = 0; begin < count; begin += step) {  // the same for all threads: a warp works together
    // Out of range, the last key or query stands in, and the result is not used.
    const int own = begin + thread() / lanes * keys_at_once;
    const Key* key[keys_at_once];
#pragma unroll
    for (int k = 0; k < keys_at_once; ++k) {
      const int i = first + (own + k < count ? own + k : count - 1);
      key[k] = keys.key(task.active == nullptr ? static_cast<Position>(i) : task.active[i], kv_head);
    }
    for (int first_query = 0; first_query < queries; first_query += tile) {
      const T* query[tile];
#pragma unroll
      for (int q = 0; q < tile; ++q) {
        const int number = first_query + q < queries ? first_query + q : queries - 1;
        query[q] = all_queries.query(task.first_row + range.first + row_of(number), head_of(number));
      }
      float dot[tile][keys_at_once] = {};
      for (int at = thread() % lanes * chunk; at < width; at += lanes * chunk) {
        float elements[keys_at_once][chunk];
#pragma unroll
        for (int k = 0; k < keys_at_once; ++k) load_chunk(key[k] + at, width - at, elements[k]);
#pragma unroll
        for (int q = 0; q < tile; ++q) {
          float factors[chunk];
          load_chunk(query[q] + at, width - at, factors);
#pragma unroll
          for (int k = 0; k < keys_at_once; ++k) {
#pragma unroll
            for (int i = 0; i < chunk; ++i) dot[q][k] += factors[i] * elements[k][i];
          }
        }
      }
#pragma unroll
      for (int q = 0; q < tile; ++q) {
        const bool used = first_query + q < queries;
        const int number = used ? first_query + q : queries - 1;
        float* const logits = logits_of(number) + own;
        const int visible = visible_to(number) - own;
#pragma unroll
        for (int k = 0; k < keys_at_once; ++k) {
          const float logit = all_queries.scale * lanes_sum(dot[q][k], lanes);
          if (used && thread() % lanes == k % lanes && own + k < count) logits[k] = k < visible ? logit : -INFINITY;
        }
      }
    }
  }
  __syncthreads();
  for (int q = warp(); q < queries; q += warps()) {
    const float* const logits = logits_of(q);
    float highest = -INFINITY;
    for (int i = lane(); i < count; i += warp_size) highest = fmaxf(highest, logits[i]);
    highest = warp_max(highest);
    float sum = 0;
    const int visible = visible_to(q);
    for (int i = lane(); i < count && i < visible; i += warp_size) sum += expf(logits[i] - highest);
    sum = lanes_sum(sum);
    if (lane() == 0) {
      task.parts[(static_cast<Index>(row_of(q)) * heads + head_of(q)) * task.part_count + part] = {highest, sum};
    }
  }
}

/// One thread for each key: the probabilities from the logits and all parts' maxima and sums, mean over the heads,
/// reduced over the rows and with the scores of earlier ones. `fmaxf` passes NaN by, but the sums are NaN then.
template <class Keys>
__global__ void __launch_bounds__(most_threads)
    combine_parts(const DeviceScoreTask<Keys>* tasks, int task_count, const RowRange range, int heads) {
  constexpr int heads_at_once = 64;
  __shared__ float highest[heads_at_once];
  __shared__ float factor[heads_at_once];
  const auto block = static_cast<int>(blockIdx.x);
  const auto& task = task_of(tasks, task_count, &DeviceScoreTask<Keys>::first_key_block, block);
  const int rows = range.of(task.rows);
  const int key = (block - task.first_key_block) * threads() + thread();
  const float share = 1 / static_cast<float>(task.rows);
  float score = range.first == 0 || key >= task.count ? 0 : task.scores[key];
  for (int row = 0; row < rows; ++row) {
    float probability = 0;
    for (int first_head = 0; first_head < heads; first_head += heads_at_once) {
      const int some_heads = heads - first_head < heads_at_once ? heads - first_head : heads_at_once;
      const Index first_place = static_cast<Index>(row) * heads + first_head;
      for (int head = warp(); head < some_heads; head += warps()) {
        const PartialSoftmax* const parts = task.parts + (first_place + head) * task.part_count;
        float maximum = -INFINITY;
        for (int p = lane(); p < task.part_count; p += warp_size) maximum = fmaxf(maximum, parts[p].highest);
        maximum = warp_max(maximum);
        float sum = 0;
        for (int p = lane(); p < task.part_count; p += warp_size) {
          if (parts[p].sum != 0) sum += parts[p].sum * expf(parts[p].highest - maximum);
        }
        sum = lanes_sum(sum);
        if (lane() == 0) {
          highest[head] = maximum;
          factor[head] = 1 / (sum * static_cast<float>(heads));
        }
      }
      __syncthreads();
      if (key < task.count) {
        for (int head = 0; head < some_heads; ++head) {
          const float logit = task.logits[(first_place + head) * task.count + key];
          probability += factor[head] * expf(logit - highest[head]);
        }
      }
      __syncthreads();
    }
    // The product lets a NaN through the maximum, so that it is reported and not lost.
    score = task.reduce == Reduce::mean ? score + probability * share
                                        : (score < probability ? probability : score) + 0 * probability;
  }
  if (key < task.count && rows > 0) task.scores[key] = score;
}

inline unsigned whole_warps(Index threads) {
  return static_cast<unsigned>(
      std::clamp<Index>((threads + warp_size - 1) / warp_size * warp_size, warp_size, most_threads));
}

/// Keys of a part: enough parts to fill the device, cut by the number of keys alone, so that results are the same on
/// every device and in every batch.
inline Index part_of(Index keys) {
  constexpr Index most_parts = 128;
  return std::clamp<Index>((keys + most_parts - 1) / most_parts, 128, longest_part);
}

inline Index parts_of(Index keys) { return (keys + part_of(keys) - 1) / part_of(keys); }

/// What a batch of score tasks needs.
struct ScoreExtent {
  template <class TaskOf>
  ScoreExtent(Index heads, Index count, const TaskOf& task_of) {
    constexpr Index most_rows_at_once = 8;
    constexpr Index most_logits = Index{1} << 25;
    for (Index i = 0; i < count; ++i) {
      const auto task = task_of(i);
      const Index keys = std::ssize(task.active);
      limits += std::ssize(task.limits);
      active += is_prefix(task.active) ? 0 : keys;
      all_keys += keys;
      parts += parts_of(keys);
      rows = std::max(rows, std::ssize(task.limits));
      longest = std::max(longest, keys);
      group = std::max<Index>(group, heads / task.keys.heads);
    }
    rows_at_once = std::min(rows, std::clamp<Index>(most_logits / (heads * all_keys), 1, most_rows_at_once));
  }

  Index limits = 0;  // in all lists
  Index active = 0;
  Index all_keys = 0;
  Index parts = 0;
  Index rows = 0;  // of the task that has most
  Index longest = 0;
  Index group = 1;
  Index rows_at_once = 0;
};

template <int tile, class T, class Keys>
void launch_partial(Context& context, const QueryRows<T>& queries, const DeviceScoreTask<Keys>* tasks, Index count,
                    RowRange range, Index longest, Index blocks) {
  const Index chunks = (queries.head_dim + chunk_size<T> - 1) / chunk_size<T>;
  const auto lanes = std::min(static_cast<Index>(std::bit_ceil(static_cast<std::size_t>(chunks))), Index{warp_size});
  launch(context, dim3(static_cast<unsigned>(blocks)),
         whole_warps(std::min(part_of(longest), longest) * lanes / keys_at_once), partial_softmax<tile, T, Keys>,
         queries, tasks, static_cast<int>(count), range, static_cast<int>(lanes));
}

}  // namespace detail

/// Enqueues the computation of the scores of `count` sequences, all in the same launches; `task_of(i)` is the
/// `ScoreTask` of the i-th, its lists on the host, which may be changed at once, its scores and keys on the device.
/// `key` of the key view is called by kernels. K is read once for up to eight rows, fewer where their logits `[rows x
/// heads x keys]` would need more than 128 MiB of scratch memory. Throws `cuda_error`.
/// \param queries  Q of the whole batch, on the device; `float`, `__half` or `__nv_bfloat16`
template <class T, class TaskOf>
void attention_scores(Context& context, const QueryRows<T>& queries, Index count, const TaskOf& task_of) {
  using Keys = decltype(task_of(Index{}).keys);
  using Task = detail::DeviceScoreTask<Keys>;
  static_assert(alignof(Task) <= detail::Layout::alignment);
  if (count == 0) return;
  const detail::ScoreExtent extent(queries.heads, count, task_of);
  const Index softmaxes = extent.rows_at_once * queries.heads;
  detail::Layout layout;
  const Index tasks = layout.add<Task>(count);
  Index next_limits = layout.add<Position>(extent.limits);
  Index next_active = layout.add<Position>(extent.active);
  const Index uploaded = layout.bytes();
  Index next_logits = layout.add<float>(softmaxes * extent.all_keys);
  Index next_parts = layout.add<detail::PartialSoftmax>(softmaxes * extent.parts);
  std::byte* const memory = context.workspace(layout.bytes());
  const auto key_threads = static_cast<Index>(detail::whole_warps(extent.longest));
  Index part_blocks = 0;
  Index key_blocks = 0;
  context.upload(memory, uploaded, [&](std::byte* host) {
    const auto copied = [&](Positions list, Index& next) {
      std::memcpy(host + next, list.data(), list.size_bytes());
      const Position* const device = detail::at<const Position>(memory, next);
      next += static_cast<Index>(list.size_bytes());
      return device;
    };
    for (Index i = 0; i < count; ++i) {
      const auto task = task_of(i);
      const Index keys = std::ssize(task.active);
      const Index parts = detail::parts_of(keys);
      detail::at<Task>(host, tasks)[i] = {.keys = task.keys,
                                          .active = is_prefix(task.active) ? nullptr : copied(task.active, next_active),
                                          .limits = copied(task.limits, next_limits),
                                          .logits = detail::at<float>(memory, next_logits),
                                          .parts = detail::at<detail::PartialSoftmax>(memory, next_parts),
                                          .scores = task.scores.data(),
                                          .first_row = task.first_row,
                                          .rows = static_cast<int>(task.limits.size()),
                                          .count = static_cast<int>(keys),
                                          .part = static_cast<int>(detail::part_of(keys)),
                                          .part_count = static_cast<int>(parts),
                                          .first_part_block = static_cast<int>(part_blocks),
                                          .first_key_block = static_cast<int>(key_blocks),
                                          .reduce = task.reduce};
      next_logits += softmaxes * keys * static_cast<Index>(sizeof(float));
      next_parts += softmaxes * parts * static_cast<Index>(sizeof(detail::PartialSoftmax));
      part_blocks += parts * task.keys.heads;
      key_blocks += (keys + key_threads - 1) / key_threads;
    }
  });
  const auto* const device_tasks = detail::at<const Task>(memory, tasks);
  for (Index first = 0; first < extent.rows; first += extent.rows_at_once) {
    const detail::RowRange range{static_cast<int>(first), static_cast<int>(extent.rows_at_once)};
    const Index queries_of_key = std::min(extent.rows_at_once, extent.rows - first) * extent.group;
    const auto partial = [&](auto launch_tile) {
      launch_tile(context, queries, device_tasks, count, range, extent.longest, part_blocks);
    };
    if (queries_of_key == 1) {
      partial(detail::launch_partial<1, T, Keys>);
    } else if (queries_of_key <= 4) {
      partial(detail::launch_partial<4, T, Keys>);
    } else {
      partial(detail::launch_partial<8, T, Keys>);
    }
    detail::launch(context, dim3(static_cast<unsigned>(key_blocks)), static_cast<unsigned>(key_threads),
                   detail::combine_parts<Keys>, device_tasks, static_cast<int>(count), range,
                   static_cast<int>(queries.heads));
  }
}

namespace detail {

struct AccumulateScore {
  float* scores;
  float* sums;
  bool first;

  LAZYLLM_HOST_DEVICE void operator()(std::uint32_t i) const {
    sums[i] = first ? scores[i] : sums[i] + scores[i];
    scores[i] = sums[i];
  }
};

}  // namespace detail

/// Enqueues: adds `scores` to `sums`, or sets `sums` to them if `first`, and copies the sums back. All `[keys]`, on the
/// device. Throws `cuda_error`.
inline void accumulate_scores(Context& context, std::span<float> scores, std::span<float> sums, bool first) {
  detail::for_each(context, static_cast<std::uint32_t>(scores.size()),
                   detail::AccumulateScore{scores.data(), sums.data(), first});
}

}  // namespace lazyllm::cuda
