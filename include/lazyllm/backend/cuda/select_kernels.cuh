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
///     4. write the kept keys: in each round a warp has 32 neighbouring keys, votes, and knows from the votes of the
///        warps before it where its kept keys go

namespace lazyllm::cuda::detail {

/// A selection task on the device. Its keys [open_first, open_last) compete, except for those that the mask protects.
/// The others are kept.
struct DeviceSelectionTask {
  const float* scores;
  const std::uint8_t* mask;  // `[open_last - open_first]`, or null
  double share;              // negative to select by count
  Index first_kept;          // where its kept indices go
  int keys;
  int open_first;
  int open_last;
  int wanted;  // by count: how many of the open keys

  LAZYLLM_HOST_DEVICE bool open(int i) const {
    return i >= open_first && i < open_last && (mask == nullptr || mask[i - open_first] == 0);
  }
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

/// The highest open keys whose weights add up to at least `wanted`. Precondition: the weights of all open keys do. A
/// radix search from the highest digit down.
template <class Weight, class WeightOf>
__device__ Threshold find_threshold(const DeviceSelectionTask& task, Weight wanted, const WeightOf& weight_of) {
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
  return find_threshold(task, static_cast<Units>(wanted),
                        [&units](float score) { return static_cast<Units>(units.of(score)); });
}

/// Writes the kept keys in ascending order and returns their number.
__device__ inline int write_kept(const DeviceSelectionTask& task, const Threshold& threshold, int* kept) {
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
  Threshold threshold{UINT32_MAX, 0};
  if (task.share >= 0) {
    threshold = share_threshold(task, __builtin_bit_cast(float, block_max(highest)));
  } else if (task.wanted > 0) {
    threshold = find_threshold(task, static_cast<unsigned>(task.wanted), [](float) { return 1U; });
  }
  const int count = write_kept(task, threshold, kept + task.first_kept);
  if (thread() == 0) result = {task.first_kept, -1, count};
}

}  // namespace lazyllm::cuda::detail
