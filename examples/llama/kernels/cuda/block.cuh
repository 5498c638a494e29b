#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "examples/llama/kernels/cuda/launch.cuh"

/// \file
/// What the threads of a block do together. All blocks are one-dimensional and of whole warps, and all threads of a
/// block call these functions.

namespace llama::kernels {

inline constexpr int warp_size = 32;
inline constexpr std::uint32_t whole_warp = 0xffffffffU;

__device__ inline int thread() { return static_cast<int>(threadIdx.x); }
__device__ inline int threads() { return static_cast<int>(blockDim.x); }
__device__ inline int lane() { return thread() % warp_size; }
__device__ inline int warp() { return thread() / warp_size; }

/// The sum over the warp's lanes whose numbers differ in the low bits only, `lanes` of them, a power of two.
__device__ inline float lanes_sum(float value, int lanes = warp_size) {
  for (int step = lanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(whole_warp, value, step);
  return value;
}

/// The highest value of the warp.
__device__ inline float warp_max(float value) {
  for (int step = warp_size / 2; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(whole_warp, value, step));
  }
  return value;
}

/// The sum of the values of all threads, in the same order every time.
__device__ inline float block_sum(float value) {
  __shared__ float of_warp[warp_size];
  value = lanes_sum(value);
  if (lane() == 0) of_warp[warp()] = value;
  __syncthreads();
  float result = of_warp[0];
  for (int w = 1; w < threads() / warp_size; ++w) result += of_warp[w];
  __syncthreads();  // for the next call
  return result;
}

}  // namespace llama::kernels
