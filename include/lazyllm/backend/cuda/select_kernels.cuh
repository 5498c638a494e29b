#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "lazyllm/backend/cuda/block.cuh"
#include "lazyllm/backend/score_order.hpp"
#include "lazyllm/engine/host_device.hpp"
#include "lazyllm/engine/positions.hpp"

/// \file
/// The kernel of the selection: one block for each task. Thread t looks at keys t, t + threads, t + 2 threads, … in all
/// passes over the scores but the last:
///
///     1. find a score that is not finite, and the highest magnitude
///     2. by share: add up the scores
///     3. three times, for a digit of 11, 11 and 10 bits of the sort key from the highest down: count the open keys, or
///        add up their scores, by digit in 2048 bins, of which each thread sums some neighbours:
///
///            bins    2047 … 2046 | 2045 … 2044 | …      1024 threads: two bins for each thread
///            thread       0      |      1      | …      the thread in whose bins `wanted` is reached knows the digit
///
///     4. with a limit of revived keys: the same digits once more, for the kept keys that would be revived
///     5. write the kept keys: in each round a warp has 32 neighbouring keys, votes, and knows from the votes of the
///        warps before it where its kept keys go

namespace lazyllm::cuda::detail {

/// A selection task on the device. Its keys [open_first, open_last) compete, except for those that the mask protects.
/// The others are kept.
struct DeviceSelectionTask {
  static constexpr std::uint8_t is_protected = 1;  // of the mask
  static constexpr std::uint8_t is_revived = 2;

  const float* scores;
  const std::uint8_t* mask;  // `[open_last - open_first]`, or null
  double share;              // negative to select by count
  Index first_kept;          // where its kept indices go
  int keys;
  int open_first;
  int open_last;
  int wanted;         // by count: how many of the open keys
  Index max_revived;  // of the open keys; negative for no limit

  LAZYLLM_HOST_DEVICE bool open(int i) const {
    return i >= open_first && i < open_last && (mask == nullptr || (mask[i - open_first] & is_protected) == 0);
  }
  /// Of an open key, with a limit.
  LAZYLLM_HOST_DEVICE bool revives(int i) const { return (mask[i - open_first] & is_revived) != 0; }
};

/// What comes back of a task.
struct SelectionResult {
  Index first_kept;
  int bad;   // the first score that is not finite, or -1
  int kept;  // how many
};

/// Which of the open keys are kept: those above `key`, and the first `equals` of those equal to it.
struct Threshold {
  std::uint32_t key;
  int equals;
};

/// The keys that compete for a threshold: the open ones, or those of them that would be revived and are above a key.
struct Competitors {
  const DeviceSelectionTask& task;
  bool revived_only = false;
  std::uint32_t above = 0;  // no score's key is 0

  __device__ bool has(int i, std::uint32_t key) const {
    return task.open(i) && (!revived_only || task.revives(i)) && key > above;
  }
};

/// The highest competitors whose weights add up to at least `wanted`. Precondition: the weights of all do. A radix
/// search from the highest digit down.
template <class Weight, class WeightOf>
__device__ Threshold find_threshold(const Competitors& competitors, Weight wanted, const WeightOf& weight_of) {
  const DeviceSelectionTask& task = competitors.task;
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
      const std::uint32_t candidate = lazyllm::detail::sort_key(task.scores[i]);
      if (competitors.has(i, candidate) && (candidate & fixed) == key) {
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

/// The weight of a key by count.
struct One {
  __device__ unsigned operator()(float) const { return 1; }
};

/// The threshold of a task by share.
__device__ inline Threshold share_threshold(const DeviceSelectionTask& task, float highest) {
  const lazyllm::detail::ScoreUnits units(highest, task.keys);
  std::int64_t open = 0;
  std::int64_t held = 0;  // by the protected keys
  for (int i = thread(); i < task.keys; i += threads()) {
    (task.open(i) ? open : held) += units.of(task.scores[i]);
  }
  open = block_sum(open);
  held = block_sum(held);
  const std::int64_t wanted = units.share(task.share, open + held) - held;
  if (wanted <= 0) return {UINT32_MAX, 0};
  if (wanted > open) return {0, 0};  // all of them: no score's key is 0
  return find_threshold(Competitors{task}, static_cast<Units>(wanted),
                        [&units](float score) { return static_cast<Units>(units.of(score)); });
}

/// The `count` highest competitors; there are so many.
__device__ inline Threshold count_threshold(const Competitors& competitors, int count) {
  if (count == 0) return {UINT32_MAX, 0};
  return find_threshold(competitors, static_cast<unsigned>(count), One());
}

/// Which of the keys that `threshold` keeps, and which would be revived, stay.
__device__ inline Threshold revival_threshold(const DeviceSelectionTask& task, const Threshold& threshold) {
  const Competitors competitors{task, true, threshold.key};
  int count = 0;
  for (int i = task.open_first + thread(); i < task.open_last; i += threads()) {
    count += competitors.has(i, lazyllm::detail::sort_key(task.scores[i]));
  }
  count = block_sum(count);
  const auto limit = static_cast<int>(task.max_revived);
  if (count < limit) return {threshold.key, limit - count};
  return count_threshold(competitors, limit);
}

/// Writes the kept keys in ascending order and returns their number.
__device__ inline int write_kept(const DeviceSelectionTask& task, const Threshold& threshold, const Threshold& revival,
                                 int* kept) {
  int equals = 0;  // in earlier rounds, as are the following
  int revived_equals = 0;
  int count = 0;
  for (int first = 0; first < task.keys; first += threads()) {
    const int i = first + thread();
    const bool open = task.open(i);
    const std::uint32_t key = open ? lazyllm::detail::sort_key(task.scores[i]) : 0;
    const bool equal = open && key == threshold.key;
    const int rank = rank_before(equal, equals);
    bool stays = i < task.keys && (!open || key > threshold.key || (equal && rank < threshold.equals));
    if (task.max_revived >= 0) {
      const bool revives = stays && open && task.revives(i);
      const bool revived_equal = revives && key == revival.key;
      const int revived_rank = rank_before(revived_equal, revived_equals);
      if (revives) stays = key > revival.key || (revived_equal && revived_rank < revival.equals);
    }
    const int place = rank_before(stays, count);
    if (stays) kept[place] = i;
  }
  return count;
}

inline constexpr int max_selecting_threads = 1024;

/// Writes the result of each task, and the ascending indices of its kept keys. A template because nvcc ignores `inline`
/// of a kernel.
template <class Task>
__global__ void __launch_bounds__(max_selecting_threads)
    select_kept(const Task* tasks, SelectionResult* results, int* kept) {
  const Task task = tasks[blockIdx.x];
  SelectionResult& result = results[blockIdx.x];
  int bad = task.keys;
  std::uint32_t highest = 0;  // by its bits, which order magnitudes and which no option flushes to 0
  for (int i = task.keys - 1 - thread(); i >= 0; i -= threads()) {
    const float score = task.scores[i];
    if (!lazyllm::detail::is_finite(score)) bad = i;
    const std::uint32_t magnitude = __builtin_bit_cast(std::uint32_t, score) & 0x7fffffffU;
    highest = highest < magnitude ? magnitude : highest;
  }
  bad = block_min(bad);
  if (bad < task.keys) {
    if (thread() == 0) result = {task.first_kept, bad, 0};
    return;
  }
  Threshold threshold;
  if (task.share >= 0) {
    threshold = share_threshold(task, __builtin_bit_cast(float, block_max(highest)));
  } else {
    threshold = count_threshold(Competitors{task}, task.wanted);
  }
  Threshold revival{0, 0};
  if (task.max_revived >= 0) revival = revival_threshold(task, threshold);
  const int count = write_kept(task, threshold, revival, kept + task.first_kept);
  if (thread() == 0) result = {task.first_kept, -1, count};
}

}  // namespace lazyllm::cuda::detail
