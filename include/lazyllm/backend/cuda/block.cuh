#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "lazyllm/backend/cuda/launch.cuh"

/// \file
/// What the threads of a block do together. All blocks are one-dimensional and of whole warps, and all threads of a
/// block call these functions.

namespace lazyllm::cuda::detail {

inline constexpr int warp_size = 32;
inline constexpr std::uint32_t whole_warp = 0xffffffffU;

__device__ inline int thread() { return static_cast<int>(threadIdx.x); }
__device__ inline int threads() { return static_cast<int>(blockDim.x); }
__device__ inline int lane() { return thread() % warp_size; }
__device__ inline int warp() { return thread() / warp_size; }
__device__ inline int warps() { return threads() / warp_size; }

/// The sum over the warp's lanes whose numbers differ in the low bits only, `lanes` of them, a power of two.
template <class T>
__device__ T lanes_sum(T value, int lanes = warp_size) {
  for (int step = lanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(whole_warp, value, step);
  return value;
}

__device__ inline float warp_max(float value) {
  for (int step = warp_size / 2; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(whole_warp, value, step));
  }
  return value;
}

/// `combine` of the values of all threads, in the same order every time.
template <class T, class Combine>
__device__ T block_reduce(T value, const Combine& combine) {
  __shared__ T of_warp[warp_size];
  for (int step = warp_size / 2; step > 0; step /= 2) {
    value = combine(value, __shfl_xor_sync(whole_warp, value, step));
  }
  if (lane() == 0) of_warp[warp()] = value;
  __syncthreads();
  T result = of_warp[0];
  for (int w = 1; w < warps(); ++w) result = combine(result, of_warp[w]);
  __syncthreads();
  return result;
}

template <class T>
__device__ T block_sum(T value) {
  return block_reduce(value, [](T a, T b) { return a + b; });
}

template <class T>
__device__ T block_max(T value) {
  return block_reduce(value, [](T a, T b) { return a < b ? b : a; });
}

template <class T>
__device__ T block_min(T value) {
  return block_reduce(value, [](T a, T b) { return b < a ? b : a; });
}

/// The sum of the values of the threads before this one.
template <class T>
__device__ T sum_before(T value) {
  __shared__ T of_warp[warp_size];
  T sum = value;
  for (int step = 1; step < warp_size; step *= 2) {
    const T before = __shfl_up_sync(whole_warp, sum, static_cast<unsigned>(step));
    if (lane() >= step) sum += before;
  }
  if (lane() == warp_size - 1) of_warp[warp()] = sum;
  __syncthreads();
  for (int w = 0; w < warp(); ++w) sum += of_warp[w];
  __syncthreads();  // for the next call
  return sum - value;
}

/// The number of threads before this one whose flag is set, and `count` more; adds those of the whole block to `count`.
__device__ inline int rank_before(bool flag, int& count) {
  __shared__ int of_warp[warp_size];
  const std::uint32_t votes = __ballot_sync(whole_warp, flag);
  if (lane() == 0) of_warp[warp()] = __popc(votes);
  __syncthreads();
  int rank = count + __popc(votes & ((1U << lane()) - 1));
  for (int w = 0; w < warps(); ++w) {
    if (w < warp()) rank += of_warp[w];
    count += of_warp[w];
  }
  __syncthreads();  // for the next call
  return rank;
}

}  // namespace lazyllm::cuda::detail
