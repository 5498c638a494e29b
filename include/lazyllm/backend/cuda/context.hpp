#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "lazyllm/backend/cuda/memory.hpp"
#include "lazyllm/core/host_device.hpp"
#include "lazyllm/core/positions.hpp"
#include "lazyllm/error.hpp"

namespace lazyllm::cuda {

/// Execution context of the CUDA backend: the stream of its row operations, and their scratch memory. One context
/// serves one thread of the caller at a time. Operations are enqueued on the stream and return before they have run;
/// `select` waits for its result, an upload waits when eight before it are still to run or its staging memory grows.
/// Host lists that are given to operations may be changed at once. The current device must be the stream's.
class Context {
 public:
  /// On the caller's stream, which must outlive the context and all that was made with it. `workspace` is the device
  /// scratch memory to begin with, in bytes; it grows when an operation needs more. Throws `invalid_argument` if it is
  /// negative, `cuda_error` if there is no memory.
  explicit Context(cudaStream_t stream, Index workspace = 0) : stream_(stream) {
    if (workspace < 0) lazyllm::detail::fail("cuda::Context: workspace ", workspace, " is out of range, at least 0");
    if (workspace > 0) workspace_ = DeviceMemory(stream, workspace);
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  cudaStream_t stream() const { return stream_; }

  /// Growable matrix in device memory.
  template <class T>
  using Buffer = GrowingRows<Context, T, DeviceAllocator>;

  /// Growable matrix in pinned host memory, which the device reads and writes over the bus. Growing and destroying it
  /// wait for the stream.
  template <class T>
  using PinnedBuffer = GrowingRows<Context, T, PinnedAllocator>;

  /// `bytes` bytes of device scratch memory, aligned to 256, for work on the stream until the next call. Throws
  /// `cuda_error` if there is no memory.
  std::byte* workspace(Index bytes) { return grown(workspace_, bytes).data(); }

  /// `bytes` bytes of pinned memory for results of the device, valid until the next call. The caller has waited for
  /// what the last one was used for.
  std::byte* results(Index bytes) { return grown(results_, bytes).data(); }

  /// Calls `fill(host)` to write `bytes` bytes to pinned memory, and enqueues their copy to `target` on the device.
  /// Throws `cuda_error`.
  template <class Fill>
  void upload(std::byte* target, Index bytes, const Fill& fill) {
    if (bytes == 0) return;
    if (bytes > slot_bytes_) {
      const Index grown = (std::max(bytes, 2 * slot_bytes_) + 255) / 256 * 256;  // so that all slots are aligned
      staging_ = PinnedMemory(stream_, grown * std::ssize(slots_));
      slot_bytes_ = grown;
    }
    Event& slot = slots_[next_slot_];
    slot.wait();  // for its last copy
    std::byte* const host = staging_.data() + static_cast<Index>(next_slot_) * slot_bytes_;
    next_slot_ = (next_slot_ + 1) % slots_.size();
    fill(host);
    detail::check(cudaMemcpyAsync(target, host, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream_),
                  "cudaMemcpyAsync");
    slot.record(stream_);
  }

  /// Enqueues a copy of host `values` to `target` on the device; the values may be changed at once. Useful to an
  /// engine, too, for the lists of a plan.
  template <class T>
  void upload(std::span<const T> values, T* target) {
    upload(reinterpret_cast<std::byte*>(target), static_cast<Index>(values.size_bytes()),
           [&](std::byte* host) { std::memcpy(host, values.data(), values.size_bytes()); });
  }

  /// Waits for all work on the stream. Throws `cuda_error` if any of it failed.
  void synchronize() const { detail::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  template <class Allocator>
  const Memory<Allocator>& grown(Memory<Allocator>& memory, Index bytes) {
    if (bytes > memory.bytes()) memory = Memory<Allocator>(stream_, std::max(bytes, 2 * memory.bytes()));
    return memory;
  }

  cudaStream_t stream_;
  DeviceMemory workspace_;
  PinnedMemory results_;
  PinnedMemory staging_;
  Index slot_bytes_ = 0;
  std::array<Event, 8> slots_;  // of the staging memory; each guards its last copy
  std::size_t next_slot_ = 0;
};

namespace detail {

/// Lays out several arrays in one piece of memory.
class Layout {
 public:
  static constexpr Index alignment = 16;

  /// Where `count` elements of T begin, in bytes.
  template <class T>
  Index add(Index count) {
    const Index offset = bytes_;
    bytes_ += (count * static_cast<Index>(sizeof(T)) + alignment - 1) / alignment * alignment;
    return offset;
  }

  Index bytes() const { return bytes_; }

 private:
  Index bytes_ = 0;
};

template <class T>
T* at(std::byte* memory, Index offset) {
  return reinterpret_cast<T*>(memory + offset);
}

/// Of tasks that share the numbers from 0 on, task t from its `first` on: the task that `number` belongs to.
template <class Task, class Number>
LAZYLLM_HOST_DEVICE const Task& task_of(const Task* tasks, int count, Number Task::*first, Number number) {
  int begin = 0;
  while (count > 1) {  // it is among tasks [begin, begin + count)
    const int half = count / 2;
    const bool upper = tasks[begin + half].*first <= number;
    begin += upper ? half : 0;
    count = upper ? count - half : half;
  }
  return tasks[begin];
}

}  // namespace detail
}  // namespace lazyllm::cuda
