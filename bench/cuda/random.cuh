#pragma once

#include <thrust/system/cuda/execution_policy.h>
#include <thrust/tabulate.h>

#include <cstdint>

#include "lazyllm/engine/positions.hpp"

namespace lazyllm::bench {

/// Number i of a random sequence, uniform in [low, high).
template <class T>
struct RandomValue {
  float low;
  float high;
  std::uint32_t seed;

  __host__ __device__ T operator()(Index i) const {
    auto bits = static_cast<std::uint32_t>(i) * 0x9e3779b9U + seed;
    bits = (bits ^ bits >> 16) * 0x7feb352dU;
    bits = (bits ^ bits >> 15) * 0x846ca68bU;
    bits ^= bits >> 16;
    return T(low + (high - low) * (static_cast<float>(bits >> 8) * 0x1p-24F));
  }
};

/// Enqueues: writes random numbers, the same ones for the same seed, to `count` places on the device.
template <class T>
void fill_random(cudaStream_t stream, T* values, Index count, float low, float high, std::uint32_t seed = 1) {
  thrust::tabulate(thrust::cuda::par_nosync.on(stream), values, values + count, RandomValue<T>{low, high, seed});
}

}  // namespace lazyllm::bench
