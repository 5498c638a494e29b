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
#include "lazyllm/importance/attention_score.hpp"
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

/// Softmaxes of some rows of a sequence, not put together yet.
struct PartedSoftmax {
  float* logits;          // `[rows x heads x count]`
  PartialSoftmax* parts;  // `[rows x heads x part_count]`
  int rows;
  int heads;
  int count;  // of keys
  int part_count;
};

/// What these softmaxes are of.
template <class T, class Keys>
struct ScoreProblem {
  QueryRows<T> queries;
  Keys keys;
  const Position* active;  // `[count]`, or null where the keys are the first positions
  const Position* limits;  // `[rows]`
  Index first_row;
  int part;   // keys of a part
  int lanes;  // that share a key, a power of two
  PartedSoftmax softmax;

  __device__ const auto* key(int i, int kv_head) const {
    return keys.key(active == nullptr ? static_cast<Position>(i) : active[i], kv_head);
  }
};

inline constexpr int most_threads = 256;  // of a block
inline constexpr int keys_at_once = 4;    // of a group of lanes
inline constexpr int longest_part = 1024;

/// One block for each part of the keys and key head: the logits of its keys for all queries of the head, `tile` at a
/// time, and each query's maximum and sum. A group of `lanes` lanes takes some keys at once, each lane some chunks of
/// them. The second and later tiles find the keys in the cache.
template <int tile, class T, class Keys>
__global__ void __launch_bounds__(most_threads, 2) partial_softmax(const ScoreProblem<T, Keys> problem) {
  using Key = typename Keys::value_type;
  constexpr int chunk = chunk_size<Key>;
  static_assert(sizeof(Key) == sizeof(T), "queries and keys must be of types of the same size");
  __shared__ float logits[tile][longest_part];
  const auto kv_head = static_cast<int>(blockIdx.x);
  const auto part = static_cast<int>(blockIdx.y);
  const PartedSoftmax& softmax = problem.softmax;
  const int group = softmax.heads / static_cast<int>(problem.keys.heads);
  const int queries = softmax.rows * group;
  const int first = part * problem.part;
  const int count = softmax.count - first < problem.part ? softmax.count - first : problem.part;
  const auto width = static_cast<int>(problem.queries.head_width);
  const int lanes = problem.lanes;
  const int step = threads() / lanes * keys_at_once;

  for (int first_query = 0; first_query < queries; first_query += tile) {
    // Out of range, the last query or key stands in, and the result is not used.
    const T* query[tile];
#pragma unroll
    for (int q = 0; q < tile; ++q) {
      const int number = first_query + q < queries ? first_query + q : queries - 1;
      query[q] = problem.queries.query(problem.first_row + number / group, kv_head * group + number % group);
    }
    for (int begin = 0; begin < count; begin += step) {  // the same for all threads: a warp works together
      const int own = begin + thread() / lanes * keys_at_once;
      const Key* key[keys_at_once];
#pragma unroll
      for (int k = 0; k < keys_at_once; ++k) {
        const int i = own + k < count ? own + k : count - 1;
        key[k] = problem.key(first + i, kv_head);
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
#pragma unroll
        for (int k = 0; k < keys_at_once; ++k) {
          const float logit = problem.queries.scale * lanes_sum(dot[q][k], lanes);
          if (thread() % lanes == 0 && own + k < count) logits[q][own + k] = logit;
        }
      }
    }
    __syncthreads();
    for (int q = warp(); q < tile && first_query + q < queries; q += warps()) {
      const int row = (first_query + q) / group;
      const int head = kv_head * group + (first_query + q) % group;
      const int visible = static_cast<int>(problem.limits[row]) - first;
      const Index place = static_cast<Index>(row) * softmax.heads + head;
      float highest = -INFINITY;
      for (int i = lane(); i < count; i += warp_size) {
        const float logit = i < visible ? logits[q][i] : -INFINITY;
        softmax.logits[place * softmax.count + first + i] = logit;
        highest = fmaxf(highest, logit);
      }
      highest = warp_max(highest);
      float sum = 0;
      for (int i = lane(); i < count && i < visible; i += warp_size) sum += expf(logits[q][i] - highest);
      sum = lanes_sum(sum);
      if (lane() == 0) softmax.parts[place * softmax.part_count + part] = {highest, sum};
    }
    __syncthreads();
  }
}

/// One thread for each key: the probabilities from the logits and all parts' maxima and sums, mean over the heads,
/// reduced over the rows and with the scores of earlier ones. `share` is a row's part of a mean. `fmaxf` passes NaN by,
/// but the sums are NaN then.
template <Reduce reduce>
__global__ void __launch_bounds__(most_threads)
    combine_parts(const PartedSoftmax softmax, float share, bool first, float* scores) {
  constexpr int heads_at_once = 64;
  __shared__ float highest[heads_at_once];
  __shared__ float factor[heads_at_once];
  const int key = static_cast<int>(blockIdx.x) * threads() + thread();
  float score = first || key >= softmax.count ? 0 : scores[key];
  for (int row = 0; row < softmax.rows; ++row) {
    float probability = 0;
    for (int first_head = 0; first_head < softmax.heads; first_head += heads_at_once) {
      const int heads = softmax.heads - first_head < heads_at_once ? softmax.heads - first_head : heads_at_once;
      const Index first_place = static_cast<Index>(row) * softmax.heads + first_head;
      for (int head = warp(); head < heads; head += warps()) {
        const PartialSoftmax* const parts = softmax.parts + (first_place + head) * softmax.part_count;
        float maximum = -INFINITY;
        for (int p = lane(); p < softmax.part_count; p += warp_size) maximum = fmaxf(maximum, parts[p].highest);
        maximum = warp_max(maximum);
        float sum = 0;
        for (int p = lane(); p < softmax.part_count; p += warp_size) {
          if (parts[p].sum != 0) sum += parts[p].sum * expf(parts[p].highest - maximum);
        }
        sum = lanes_sum(sum);
        if (lane() == 0) {
          highest[head] = maximum;
          factor[head] = 1 / (sum * static_cast<float>(softmax.heads));
        }
      }
      __syncthreads();
      if (key < softmax.count) {
        for (int head = 0; head < heads; ++head) {
          const float logit = softmax.logits[(first_place + head) * softmax.count + key];
          probability += factor[head] * expf(logit - highest[head]);
        }
      }
      __syncthreads();
    }
    // The product lets a NaN through the maximum, so that it is reported and not lost.
    score = reduce == Reduce::mean ? score + probability * share
                                   : (score < probability ? probability : score) + 0 * probability;
  }
  if (key < softmax.count) scores[key] = score;
}

inline unsigned whole_warps(Index threads) {
  return static_cast<unsigned>(
      std::clamp<Index>((threads + warp_size - 1) / warp_size * warp_size, warp_size, most_threads));
}

template <int tile, class T, class Keys>
void launch_partial(Context& context, const ScoreProblem<T, Keys>& problem) {
  const PartedSoftmax& softmax = problem.softmax;
  launch(context, dim3(static_cast<unsigned>(problem.keys.heads), static_cast<unsigned>(softmax.part_count)),
         whole_warps(std::min(problem.part, softmax.count) * problem.lanes / keys_at_once),
         partial_softmax<tile, T, Keys>, problem);
}

template <Reduce reduce>
void launch_combine(Context& context, const PartedSoftmax& softmax, float share, bool first, float* scores) {
  const unsigned threads = whole_warps(softmax.count);
  const unsigned blocks = (static_cast<unsigned>(softmax.count) + threads - 1) / threads;
  launch(context, dim3(blocks), threads, combine_parts<reduce>, softmax, share, first, scores);
}

}  // namespace detail

/// Enqueues the computation of the attention probabilities of the last rows of a sequence, mean over the query heads
/// (eq. 1), reduced over these rows. K is read once for up to eight rows; the softmax is put together from parts of the
/// keys, as many as fill the device, cut the same on every device. Throws `cuda_error`.
/// \param queries    Q of the whole batch, on the device; `float`, `__half` or `__nv_bfloat16`
/// \param first_row  the first of the rows in the batch
/// \param limits     `[rows]` row first_row + i sees the first `limits[i]` active keys; the others have probability 0
/// \param keys       a `KeyView` of the sequence in this layer, on the device; `key` is called by kernels
/// \param active     `[keys]` positions of the active keys
/// \param scores     `[keys]` output, on the device; the other lists are the host's and may be changed at once
template <class T, class Keys>
void attention_scores(Context& context, const QueryRows<T>& queries, Index first_row, Positions limits,
                      const Keys& keys, Positions active, Reduce reduce, std::span<float> scores) {
  constexpr Index most_parts = 128;
  constexpr Index rows_at_once = 8;  // more would need much scratch memory
  const Index count = std::ssize(active);
  const Index all_rows = std::ssize(limits);
  const Index rows = std::min(all_rows, rows_at_once);
  const Index part = std::clamp<Index>((count + most_parts - 1) / most_parts, 128, detail::longest_part);
  const Index part_count = (count + part - 1) / part;
  const bool first_positions = detail::contiguous(active);

  detail::Layout layout;
  const Index device_limits = layout.add<Position>(all_rows);
  const Index device_active = layout.add<Position>(first_positions ? 0 : count);
  const Index uploaded = layout.bytes();
  const Index logits = layout.add<float>(rows * queries.heads * count);
  const Index parts = layout.add<detail::PartialSoftmax>(rows * queries.heads * part_count);
  std::byte* const memory = context.workspace(layout.bytes());
  context.upload(memory, uploaded, [&](std::byte* host) {
    std::memcpy(host + device_limits, limits.data(), limits.size_bytes());
    if (!first_positions) std::memcpy(host + device_active, active.data(), active.size_bytes());
  });
  const Index chunks = (queries.head_width + detail::chunk_size<T> - 1) / detail::chunk_size<T>;
  detail::ScoreProblem<T, Keys> problem{
      .queries = queries,
      .keys = keys,
      .active = first_positions ? nullptr : detail::at<const Position>(memory, device_active),
      .limits = detail::at<const Position>(memory, device_limits),
      .first_row = first_row,
      .part = static_cast<int>(part),
      .lanes = static_cast<int>(std::min<std::size_t>(std::bit_ceil(static_cast<std::size_t>(chunks)), 32)),
      .softmax = {.logits = detail::at<float>(memory, logits),
                  .parts = detail::at<detail::PartialSoftmax>(memory, parts),
                  .rows = static_cast<int>(rows),
                  .heads = static_cast<int>(queries.heads),
                  .count = static_cast<int>(count),
                  .part_count = static_cast<int>(part_count)}};
  const float share = 1 / static_cast<float>(all_rows);
  for (Index first = 0; first < all_rows; first += rows_at_once) {
    problem.softmax.rows = static_cast<int>(std::min(rows_at_once, all_rows - first));
    const Index queries_of_key = problem.softmax.rows * (queries.heads / keys.heads);
    if (queries_of_key == 1) {
      detail::launch_partial<1>(context, problem);
    } else if (queries_of_key <= 4) {
      detail::launch_partial<4>(context, problem);
    } else {
      detail::launch_partial<8>(context, problem);
    }
    if (reduce == Reduce::mean) {
      detail::launch_combine<Reduce::mean>(context, problem.softmax, share, first == 0, scores.data());
    } else {
      detail::launch_combine<Reduce::max>(context, problem.softmax, share, first == 0, scores.data());
    }
    problem.first_row += rows_at_once;
    problem.limits += rows_at_once;
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

struct GatherScore {
  const float* scores;
  const Index* kept;
  float* target;

  LAZYLLM_HOST_DEVICE void operator()(std::uint32_t i) const { target[i] = scores[kept[i]]; }
};

struct RandomScore {
  std::uint64_t seed;
  const Position* active;  // null where the keys are the first positions
  float* scores;

  LAZYLLM_HOST_DEVICE void operator()(std::uint32_t i) const {
    scores[i] = random_score(seed, active == nullptr ? static_cast<Position>(i) : active[i]);
  }
};

struct PoolScore {
  const float* source;
  float* target;
  Index count;
  Index reach;  // to both sides

  LAZYLLM_HOST_DEVICE void operator()(std::uint32_t i) const {
    const Index place = i;
    float highest = source[place];
    for (Index j = place > reach ? place - reach : 0; j <= place + reach && j < count; ++j) {
      if (source[j] > highest) highest = source[j];
    }
    target[place] = highest;  // a NaN stays one: no comparison with it is true
  }
};

inline std::uint32_t size32(std::size_t size) { return static_cast<std::uint32_t>(size); }

}  // namespace detail

/// Enqueues: adds `scores` to `sums`, or sets `sums` to them if `first`, and copies the sums back. All `[keys]`, on the
/// device. Throws `cuda_error`.
inline void accumulate_scores(Context& context, std::span<float> scores, std::span<float> sums, bool first) {
  detail::for_each(context, detail::size32(scores.size()), detail::AccumulateScore{scores.data(), sums.data(), first});
}

/// Enqueues: copies `scores[kept[i]]` to `target[i]`, both on the device; `kept` is the host's and may be changed at
/// once. Throws `cuda_error`.
inline void gather_scores(Context& context, std::span<const float> scores, std::span<const Index> kept,
                          std::span<float> target) {
  auto* const device_kept = reinterpret_cast<Index*>(context.workspace(static_cast<Index>(kept.size_bytes())));
  context.upload(kept, device_kept);
  detail::for_each(context, detail::size32(kept.size()),
                   detail::GatherScore{scores.data(), device_kept, target.data()});
}

/// Enqueues: gives every key a number that depends on the seed and its position only, to `scores` on the device;
/// `active` is the host's and may be changed at once. Throws `cuda_error`.
inline void random_scores(Context& context, std::uint64_t seed, Positions active, std::span<float> scores) {
  Position* device_active = nullptr;
  if (!detail::contiguous(active)) {
    device_active = reinterpret_cast<Position*>(context.workspace(static_cast<Index>(active.size_bytes())));
    context.upload(active, device_active);
  }
  detail::for_each(context, detail::size32(scores.size()), detail::RandomScore{seed, device_active, scores.data()});
}

/// Enqueues: gives every key the highest score among the `width` (odd) keys around it in the order of the active set,
/// in `scores` on the device. Throws `cuda_error`.
inline void pool_scores(Context& context, Index width, std::span<float> scores) {
  if (scores.empty()) return;
  auto* const copy = reinterpret_cast<float*>(context.workspace(static_cast<Index>(scores.size_bytes())));
  detail::check(cudaMemcpyAsync(copy, scores.data(), scores.size_bytes(), cudaMemcpyDeviceToDevice, context.stream()),
                "cudaMemcpyAsync");
  detail::for_each(context, detail::size32(scores.size()),
                   detail::PoolScore{copy, scores.data(), std::ssize(scores), width / 2});
}

}  // namespace lazyllm::cuda
