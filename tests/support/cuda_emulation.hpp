#pragma once

#include <cuda_runtime_api.h>
#include <thrust/execution_policy.h>
#include <thrust/for_each.h>
#include <thrust/iterator/counting_iterator.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#include "lazyllm/backend/cuda/context.hpp"

/// \file
/// CUDA on the CPU, for tests of the CUDA backend where there is no device: to be included before `lazyllm/cuda.cuh`,
/// and linked with cuda_emulation.cpp instead of the CUDA runtime. Kernels run block by block, the threads of a block
/// as fibers; Thrust runs on OpenMP. What is enqueued on a stream runs as late as it may, so that a missing wait is
/// seen. Between two barriers the threads of a block run in changing order; where the thread sanitizer is on, it sees
/// each of them as a thread and reports two accesses of a block that no `__syncthreads` keeps apart.

#define LAZYLLM_CUDA_EMULATION

/// Before functions of the emulation whose memory accesses are no kernel's.
#define LAZYLLM_UNWATCHED
#ifdef __clang__
#if __has_feature(thread_sanitizer)
#define LAZYLLM_THREAD_SANITIZER
#undef LAZYLLM_UNWATCHED
#define LAZYLLM_UNWATCHED __attribute__((disable_sanitizer_instrumentation, noinline))
#endif
#endif

// A block's own memory: blocks run one after the other.
#undef __shared__
#define __shared__ static
#undef __launch_bounds__
#define __launch_bounds__(...)

inline uint3 threadIdx;
inline uint3 blockIdx;
inline dim3 blockDim;

namespace lazyllm::test::cuda_emulation {

/// What has happened so far, on all streams.
struct Counters {
  int calls = 0;  ///< of the runtime, launches among them, that may fail
  int allocations = 0;
  std::size_t allocated_bytes = 0;
  int launches = 0;           ///< of kernels, Thrust's among them
  std::uint64_t threads = 0;  ///< of these launches; of Thrust's, elements
  int copies_to_host = 0;
  std::size_t bytes_to_host = 0;
  int waits = 0;  ///< for a whole stream
};
const Counters& counters();

/// Puts work on a stream. Each stream's work runs when it is waited for, and no other's with it.
void enqueue(cudaStream_t stream, std::function<void()> work);

/// Counts a launch. Throws `cuda_error` if it is the one to fail.
void launched(std::uint64_t threads);

/// Counts a call, and says whether it is the one to fail.
bool fails();

/// Whether nothing is left to run on the stream.
bool idle(cudaStream_t stream);

/// Whether the memory has been allocated as pinned host memory.
bool is_pinned(const void* memory);

/// Runs `body` by `threads` threads, which may wait for each other. Throws `std::logic_error` if they wait for ever, or
/// are not whole warps.
void run_block(unsigned threads, const std::function<void()>& body);

/// Gives `value` to the other lanes of the warp; the values of all 32, valid until the next call but one.
const std::uint64_t* exchange(std::uint64_t value);

/// Makes the allocation after the next `count` ones fail, host or device; -1 for none.
void fail_allocation_after(int count);

/// Makes the call after the next `count` ones fail, of those that may; -1 for none.
void fail_call_after(int count);

template <class T>
T value_of(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

template <class T>
const std::uint64_t* exchange_value(T value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return exchange(bits);
}

}  // namespace lazyllm::test::cuda_emulation

void __syncthreads();

template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  namespace emulation = lazyllm::test::cuda_emulation;
  return emulation::value_of<T>(emulation::exchange_value(value)[threadIdx.x % 32 ^ static_cast<unsigned>(mask)]);
}

template <class T>
T __shfl_up_sync(unsigned, T value, unsigned distance) {
  namespace emulation = lazyllm::test::cuda_emulation;
  const unsigned lane = threadIdx.x % 32;
  return emulation::value_of<T>(emulation::exchange_value(value)[lane < distance ? lane : lane - distance]);
}

inline unsigned __ballot_sync(unsigned, bool vote) {
  const std::uint64_t* const votes = lazyllm::test::cuda_emulation::exchange_value(vote);
  unsigned result = 0;
  for (unsigned lane = 0; lane < 32; ++lane) result |= static_cast<unsigned>(votes[lane] & 1) << lane;
  return result;
}

inline int __popc(unsigned bits) { return std::popcount(bits); }

template <class T>
T atomicAdd(T* target, T value) {
  return std::atomic_ref<T>(*target).fetch_add(value, std::memory_order_relaxed);
}

namespace lazyllm::cuda::detail {

template <class Function>
void for_each(Context& context, std::uint32_t count, Function function) {
  test::cuda_emulation::launched(count);
  test::cuda_emulation::enqueue(context.stream(), [=] {
    thrust::for_each_n(thrust::device, thrust::counting_iterator<std::uint32_t>(0), count, function);
  });
}

template <class... Parameters, class... Arguments>
void launch(Context& context, dim3 blocks, unsigned threads, void (*kernel)(Parameters...), Arguments... arguments) {
  test::cuda_emulation::launched(std::uint64_t{threads} * blocks.x * blocks.y);
  test::cuda_emulation::enqueue(context.stream(), [=] {
    blockDim = dim3(threads);
    for (blockIdx.y = 0; blockIdx.y < blocks.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < blocks.x; ++blockIdx.x) {
        test::cuda_emulation::run_block(threads, [&] { kernel(arguments...); });
      }
    }
  });
}

}  // namespace lazyllm::cuda::detail
