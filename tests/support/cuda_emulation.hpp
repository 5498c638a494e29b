#pragma once

#include <cuda_runtime_api.h>
#include <thrust/execution_policy.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#include <span>
#include <stdexcept>
#include <type_traits>

#include "lazyllm/backend/cuda/context.hpp"

/// \file
/// CUDA on the CPU, for tests of the CUDA backend where there is no device: to be included before `lazyllm/cuda.cuh`,
/// and linked with cuda_emulation.cpp instead of the CUDA runtime. Kernels run block by block, the threads of a block
/// as fibers; Thrust runs on OpenMP. What is enqueued on a stream runs as late as it may, so that a missing wait is
/// seen. Between two barriers the threads of a block run in changing order. With the thread sanitizer each of them is a
/// thread, and two accesses of a block are reported that no `__syncthreads` keeps apart.
///
/// The host cannot touch device memory: its pages are protected unless work of a stream runs. The device is not given
/// pointers to host memory: kernel arguments and uploads are searched for them.

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

// A block's own memory: blocks run one after the other. Clang puts it where it can be filled anew for each block; g++
// cannot put variables of templates there.
#undef __shared__
#ifdef __clang__
#define __shared__ static __attribute__((section("cuda_emulation_shared")))
#else
#define __shared__ static
#endif
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
  int graph_launches = 0;
  int event_waits = 0;  ///< for an event whose work had not run yet
};
const Counters& counters();

/// Puts work on a stream. Each stream's work runs when it is waited for, and no other's with it.
void enqueue(cudaStream_t stream, std::function<void()> work);

/// Counts a launch. Returns an error if it is the one to fail.
cudaError_t launched(std::uint64_t threads);

/// Counts a launch of a kernel. Returns an error if it is the one to fail, or for what a device refuses: no blocks or
/// too many, no threads or more than 1024, more than 48 KiB of dynamic shared memory without an opt-in by
/// `cudaFuncSetAttribute`.
cudaError_t kernel_launched(const void* kernel, dim3 blocks, unsigned threads, std::size_t shared);

/// Whether nothing is left to run on the stream.
bool idle(cudaStream_t stream);

/// Whether the memory is part of pinned host memory.
bool is_pinned(const void* memory);

/// Whether the memory is part of device memory.
bool is_on_device(const void* memory);

/// Bytes that the pool of device memory keeps for later allocations.
std::uint64_t pool_kept_bytes();

/// Whether the host could read the byte now, without a crash.
bool host_can_read(const void* memory);

/// Throws `std::logic_error` if one of the words points to host memory that the device cannot reach.
void check_pointers(std::span<const std::uint64_t> words);

inline constexpr std::size_t max_shared_bytes = 227 * 1024;     // of a block on an H100
alignas(1024) inline std::byte shared_bytes[max_shared_bytes];  // dynamic shared memory

/// Fills the shared memory of a block, of which the launch has asked for `shared` bytes; what it did not ask for is not
/// there.
void fill_shared(std::size_t shared);

/// Runs `body` by `threads` threads, which may wait for each other. Throws `std::logic_error` if they wait for ever, or
/// are not whole warps.
void run_block(unsigned threads, const std::function<void()>& body);

/// Gives `value` to the other lanes of the warp; the values of all 32, valid until the next call but one.
const std::uint64_t* exchange(std::uint64_t value);

/// Makes the allocation after the next `count` ones fail, host or device; -1 for none.
void fail_allocation_after(int count);

/// Makes the call after the next `count` ones fail, of those that may; -1 for none.
void fail_call_after(int count);

/// Throws `std::logic_error` if a kernel argument contains a pointer to host memory. Bytes between its members could
/// look like one: where the compiler cannot clear them, only types without such bytes are searched.
template <class T>
void check_argument(T argument) {
  static_assert(std::is_trivially_copyable_v<T>, "kernels are given copies of bytes");
#ifndef __clang__
  __builtin_clear_padding(&argument);
#else
  if (!std::has_unique_object_representations_v<T>) return;
#endif
  std::uint64_t words[(sizeof(T) + 7) / 8] = {};
  std::memcpy(words, &argument, sizeof(T));
  check_pointers(words);
}

inline void (*block_ended)() = [] {};  ///< called after each block

/// `kernel<<<blocks, threads, shared, stream>>>(arguments…)` and its error.
template <class... Parameters, class... Arguments>
cudaError_t launch_kernel(cudaStream_t stream, dim3 blocks, unsigned threads, std::size_t shared,
                          void (*kernel)(Parameters...), Arguments... arguments) {
  const cudaError_t code = kernel_launched(reinterpret_cast<const void*>(kernel), blocks, threads, shared);
  if (code != cudaSuccess) return code;
  (check_argument<std::remove_const_t<Parameters>>(arguments), ...);
  enqueue(stream, [=] {
    blockDim = dim3(threads);
    for (blockIdx.y = 0; blockIdx.y < blocks.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < blocks.x; ++blockIdx.x) {
        fill_shared(shared);
        run_block(threads, [&] { kernel(arguments...); });
        block_ended();
      }
    }
  });
  return cudaSuccess;
}

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

template <class Call>
void thrust_call(Context& context, Index count, const Call& call) {
  if (count == 0) return;
  check(test::cuda_emulation::launched(static_cast<std::uint64_t>(count)), "Thrust");
  test::cuda_emulation::check_argument(call);
  test::cuda_emulation::enqueue(context.stream(), [=] { call(thrust::device); });
}

template <class... Parameters, class... Arguments>
void launch(Context& context, dim3 blocks, unsigned threads, void (*kernel)(Parameters...), Arguments... arguments) {
  check(test::cuda_emulation::launch_kernel(context.stream(), blocks, threads, 0, kernel, arguments...),
        "kernel launch");
}

}  // namespace lazyllm::cuda::detail
