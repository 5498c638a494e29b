#pragma once

#include <cuda_bf16.h>

#include "bench/cuda/random.cuh"
#include "bench/cuda/stream.hpp"
#include "bench/support.hpp"
#include "lazyllm/cuda.cuh"

/// What the device's micro benchmarks share. They are named and arranged as those of the CPU.
namespace lazyllm::bench {

using bf16 = __nv_bfloat16;

/// 2k to 128k tokens.
inline const std::vector<std::int64_t> device_token_counts{1 << 11, 1 << 13, 1 << 15, 1 << 17};

/// Device memory with random numbers in [0, 1).
template <class T>
class RandomMemory {
 public:
  RandomMemory(cudaStream_t stream, Index count) : memory_(stream, count * static_cast<Index>(sizeof(T))) {
    fill_random(stream, data(), count, 0, 1);
  }

  T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  std::size_t bytes() const { return static_cast<std::size_t>(memory_.bytes()); }

 private:
  cuda::detail::DeviceMemory memory_;
};

/// Times `call()`, which enqueues work on the stream, many calls one after the other.
template <class Call>
void time_calls(benchmark::State& state, cudaStream_t stream, const Call& call) {
  StreamTimer timer;
  call();  // scratch memory grows
  for (auto _ : state) state.SetIterationTime(milliseconds_per_call(timer, stream, 10, call) * 1e-3);
}

/// One copy of `bytes` bytes within the device, or between it and pinned memory.
inline void copy_bytes(cudaStream_t stream, void* target, const void* source, std::size_t bytes) {
  cuda::detail::check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
}

}  // namespace lazyllm::bench
