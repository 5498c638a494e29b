#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>

#include "lazyllm/backend/cuda/block.cuh"
#include "lazyllm/backend/cuda/layout.hpp"
#include "lazyllm/backend/score_order.hpp"
#include "lazyllm/engine/element.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/engine/queries.hpp"

/// \file
/// The two kernels of attention scores. For a sequence with 5 key heads, group size 2 and one row:
///
///               key head 0 .. 4                     heads 0 .. 9
///     keys   +----+----+----+----+----+          +---------------+
///     part 0 | b0 | b1 | b2 | b3 | b4 |   block  | threads =     |
///            +----+----+----+----+----+     0    | keys 0 .. 255 |  each thread reduces its key over the heads,
///     part 1 | b5 | b6 | b7 | b8 | b9 |          +---------------+  then over the rows
///            +----+----+----+----+----+     1    | 256 .. 511    |
///              partial_softmax                   +---------------+
///                                                  combine_parts
///
/// Within a block of `partial_softmax` with 16 lanes in a group and 4 keys for a group:
///
///     threads  0 .. 15: keys 0, 1, 2, 3     each lane takes every 16th chunk of 16 bytes of these keys and of the
///     threads 16 .. 31: keys 4, 5, 6, 7     queries; the lanes' sums are added up; then one warp for each query
///     ...                                   finds the maximum and the sum of its logits

namespace lazyllm::cuda::detail {

template <class T>
__device__ float to_float(T value) {
  return static_cast<float>(value);
}
__device__ inline float to_float(Float16 value) { return __half2float(__half(__half_raw{value.bits})); }  // in hardware

/// Elements of 16 bytes.
template <class T>
inline constexpr int chunk_size = static_cast<int>(sizeof(uint4) / sizeof(T));

/// Elements of 16 bytes as they lie in memory.
template <class T>
struct alignas(uint4) Chunk {
  T elements[chunk_size<T>];

  __device__ float operator[](int i) const { return to_float(elements[i]); }
};

/// The `count` elements at `from`, and zeros up to a whole chunk. One access if a whole chunk is there and aligned.
template <class T>
__device__ Chunk<T> load_chunk(const T* from, int count) {
  if (count >= chunk_size<T> && reinterpret_cast<std::uintptr_t>(from) % sizeof(uint4) == 0) {
    return __builtin_bit_cast(Chunk<T>, *reinterpret_cast<const uint4*>(from));
  }
  auto chunk = __builtin_bit_cast(Chunk<T>, uint4{});
#pragma unroll
  for (int i = 0; i < chunk_size<T>; ++i) {
    if (i < count) chunk.elements[i] = from[i];
  }
  return chunk;
}

/// The softmax of one query over one part of the keys.
struct PartialSoftmax {
  float highest;
  float sum;  // of exp(logit - highest)
};

/// The scores of one sequence. Its keys are divided into parts. Some rows are done in one launch.
template <class Keys>
struct DeviceScoreTask {
  Keys key_view;
  const Position* keys;    // `[count]`, or null where the keys are the first positions
  const Position* limits;  // `[rows]`
  float* logits;           // `[rows of a launch x heads x count]`
  PartialSoftmax* parts;   // `[rows of a launch x heads x part_count]`
  float* scores;           // `[count]`
  Index first_row;
  int rows;
  int count;
  int keys_per_part;
  int part_count;
  int first_part_block;
  int first_key_block;
  Reduce over_heads;
  Reduce over_rows;
};

/// The rows [first, first + count) of each sequence, which one launch does. A sequence may have fewer.
struct RowRange {
  int first;
  int count;

  /// How many of them a sequence of `rows` rows has; not positive if it has none.
  __device__ int of(int rows) const { return rows - first < count ? rows - first : count; }
};

inline constexpr int max_block_threads = 256;
inline constexpr int keys_per_group = 4;

/// Blocks that a multiprocessor of 65536 registers can hold, whose loads hide each other's latency: one query needs 64
/// registers in a thread, several need 128.
template <int tile>
inline constexpr int min_blocks = tile == 1 ? 4 : 2;

/// One block for each part of the keys and key head: the logits of its keys for all queries of the head, and each
/// query's maximum and sum. A group of `lanes` lanes takes four keys and `tile` queries in one go. Later tiles of
/// queries find these keys in the L1 cache.
template <int tile, class T, class Keys>
__global__ void __launch_bounds__(max_block_threads, min_blocks<tile>)
    partial_softmax(const QueryRows<T> all_queries, const DeviceScoreTask<Keys>* tasks, int task_count,
                    const RowRange range, int lanes) {
  using Key = typename Keys::value_type;
  constexpr int chunk = chunk_size<Key>;
  const auto block = static_cast<int>(blockIdx.x);
  const auto& task = task_of(tasks, task_count, &DeviceScoreTask<Keys>::first_part_block, block);
  const Keys key_view = task.key_view;
  const auto heads = static_cast<int>(all_queries.heads);
  const auto kv_heads = static_cast<int>(key_view.kv_heads);
  const int kv_head = (block - task.first_part_block) % kv_heads;
  const int part = (block - task.first_part_block) / kv_heads;
  const int group = heads / kv_heads;
  const int queries = range.of(task.rows) * group;
  const int first = part * task.keys_per_part;
  const int count = task.count - first < task.keys_per_part ? task.count - first : task.keys_per_part;
  const auto head_dim = static_cast<int>(all_queries.head_dim);
  const int step = threads() / lanes * keys_per_group;
  // With a tile of 1 there is one query at most.
  const auto row_of = [&](int query) { return tile == 1 ? 0 : query / group; };
  const auto head_of = [&](int query) { return tile == 1 ? kv_head : kv_head * group + query % group; };
  // Where the logits of a query begin, and how many of its part's keys it sees.
  const auto logits_of = [&](int query) {
    return task.logits + (static_cast<Index>(row_of(query)) * heads + head_of(query)) * task.count + first;
  };
  const auto visible_to = [&](int query) { return static_cast<int>(task.limits[range.first + row_of(query)]) - first; };

  for (int begin = 0; begin < count; begin += step) {  // the same for all threads: a warp works together
    // Beyond the end the last key or query is taken again, and the result is not used.
    const int own = begin + thread() / lanes * keys_per_group;
    const Key* key[keys_per_group];
#pragma unroll
    for (int k = 0; k < keys_per_group; ++k) {
      const int i = first + (own + k < count ? own + k : count - 1);
      key[k] = key_view.key(task.keys == nullptr ? static_cast<Position>(i) : task.keys[i], kv_head);
    }
    for (int first_query = 0; first_query < queries; first_query += tile) {
      const T* query[tile];
#pragma unroll
      for (int q = 0; q < tile; ++q) {
        const int number = first_query + q < queries ? first_query + q : queries - 1;
        query[q] = all_queries.query(task.first_row + range.first + row_of(number), head_of(number));
      }
      float dot[tile][keys_per_group] = {};
      for (int at = thread() % lanes * chunk; at < head_dim; at += lanes * chunk) {
        Chunk<Key> elements[keys_per_group];
#pragma unroll
        for (int k = 0; k < keys_per_group; ++k) elements[k] = load_chunk(key[k] + at, head_dim - at);
#pragma unroll
        for (int q = 0; q < tile; ++q) {
          const Chunk<T> factors = load_chunk(query[q] + at, head_dim - at);
#pragma unroll
          for (int k = 0; k < keys_per_group; ++k) {
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
        for (int k = 0; k < keys_per_group; ++k) {
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

/// One thread for each key: the probabilities from the logits and all parts' maxima and sums, reduced over the heads,
/// then over the rows of this launch and with the scores of earlier ones. `fmaxf` ignores a NaN, but the sums are
/// NaN then.
template <class Keys>
__global__ void __launch_bounds__(max_block_threads)
    combine_parts(const DeviceScoreTask<Keys>* tasks, int task_count, const RowRange range, int heads) {
  constexpr int max_heads = 64;  // whose sums are in shared memory together
  __shared__ float highest[max_heads];
  __shared__ float factor[max_heads];
  const auto block = static_cast<int>(blockIdx.x);
  const auto& task = task_of(tasks, task_count, &DeviceScoreTask<Keys>::first_key_block, block);
  const int rows = range.of(task.rows);
  const int key = (block - task.first_key_block) * threads() + thread();
  const bool mean_over_heads = task.over_heads == Reduce::mean;
  const float head_count = mean_over_heads ? static_cast<float>(heads) : 1;
  const float share = 1 / static_cast<float>(task.rows);
  float score = range.first == 0 || key >= task.count ? 0 : task.scores[key];
  for (int row = 0; row < rows; ++row) {
    float probability = 0;
    for (int first_head = 0; first_head < heads; first_head += max_heads) {
      const int some_heads = heads - first_head < max_heads ? heads - first_head : max_heads;
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
          factor[head] = 1 / (sum * head_count);
        }
      }
      __syncthreads();
      if (key < task.count) {
        for (int head = 0; head < some_heads; ++head) {
          const float logit = task.logits[(first_place + head) * task.count + key];
          const float of_head = factor[head] * expf(logit - highest[head]);
          probability = mean_over_heads ? probability + of_head : lazyllm::detail::higher(probability, of_head);
        }
      }
      __syncthreads();
    }
    score = task.over_rows == Reduce::mean ? score + probability * share : lazyllm::detail::higher(score, probability);
  }
  if (key < task.count && rows > 0) task.scores[key] = score;
}

}  // namespace lazyllm::cuda::detail
