#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>

#include "lazyllm/backend/cuda/memory.hpp"
#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/positions.hpp"

namespace lazyllm::cuda {

/// Execution context of the CUDA backend: the stream of its operations, and their scratch memory. One context serves
/// one thread of the caller at a time. The current device must be the stream's. Operations are enqueued on the stream
/// and return before they have run. Those that have an answer wait for it: `select_tokens`, `end_selection` and
/// `copy_to_host`. An upload waits when eight before it are still to run or its staging memory grows. Lists in host
/// memory may be changed when a call returns.
class Context {
 public:
  /// On the caller's stream, which must outlive the context and all that was made with it. `workspace` is the device
  /// scratch memory to begin with, in bytes; it grows when an operation needs more. Throws `invalid_argument` if it is
  /// negative, `cuda_error` if there is no memory.
  explicit Context(cudaStream_t stream, Index workspace = 0) : stream_(stream) {
    if (workspace < 0) lazyllm::detail::fail("cuda::Context: workspace ", workspace, " is out of range, at least 0");
    if (workspace > 0) workspace_ = detail::DeviceMemory(stream, workspace);
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// The caller's stream.
  cudaStream_t stream() const { return stream_; }

  /// Growable matrix in device memory.
  template <class T>
  using Buffer = detail::Buffer<Context, T, detail::DeviceAllocator>;

  /// Growable matrix in pinned host memory, which the device reads and writes over the bus. Growing and destroying it
  /// wait for the stream.
  template <class T>
  using PinnedBuffer = detail::Buffer<Context, T, detail::PinnedAllocator>;

  /// A selection that is under way; see `begin_selection`.
  class PendingSelection;

  /// `bytes` bytes of device scratch memory, aligned to 256, for work on the stream until the next call. Throws
  /// `cuda_error` if there is no memory.
  std::byte* workspace(Index bytes) {
    workspace_.grow(stream_, bytes);
    return workspace_.data();
  }

  /// Calls `fill(host)` to write `bytes` bytes to pinned memory, and then `enqueue(host)`, which enqueues work on the
  /// stream that reads them. Throws `cuda_error`.
  template <class Fill, class Enqueue>
  void stage(Index bytes, const Fill& fill, const Enqueue& enqueue) {
    if (bytes > slot_bytes_) {
      const Index grown = (std::max(bytes, 2 * slot_bytes_) + 255) / 256 * 256;  // so that all slots are aligned
      staging_ = detail::PinnedMemory(stream_, grown * std::ssize(slots_));
      slot_bytes_ = grown;
    }
    detail::Event& slot = slots_[next_slot_];
    slot.wait();  // for the work that reads it
    std::byte* const host = staging_.data() + static_cast<Index>(next_slot_) * slot_bytes_;
    next_slot_ = (next_slot_ + 1) % slots_.size();
    fill(host);
    enqueue(static_cast<const std::byte*>(host));
    slot.record(stream_);
  }

  /// Calls `fill(host)` to write `bytes` bytes to pinned memory, and enqueues their copy to `target` on the device.
  /// Throws `cuda_error`.
  template <class Fill>
  void upload(std::byte* target, Index bytes, const Fill& fill) {
    if (bytes == 0) return;
    stage(bytes, fill, [&](const std::byte* host) {
      detail::check(cudaMemcpyAsync(target, host, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream_),
                    "cudaMemcpyAsync");
    });
  }

  /// Enqueues a copy of host `values` to `target` on the device. The values may be changed when it returns. Throws
  /// `cuda_error`.
  template <class T>
  void upload(std::span<const T> values, T* target) {
    upload(reinterpret_cast<std::byte*>(target), static_cast<Index>(values.size_bytes()),
           [&](std::byte* host) { std::memcpy(host, values.data(), values.size_bytes()); });
  }

  /// Calls `enqueue(host)`, which enqueues work on the stream that writes `bytes` bytes to pinned memory, and waits for
  /// the stream. Returns that memory, valid until the next call. Throws `cuda_error`.
  template <class Enqueue>
  std::byte* fetch(Index bytes, const Enqueue& enqueue) {
    results_.grow(stream_, bytes);
    enqueue(results_.data());
    synchronize();
    return results_.data();
  }

  /// Waits for all work on the stream. Throws `cuda_error` if any of it failed.
  void synchronize() const { detail::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_;
  detail::DeviceMemory workspace_;
  detail::PinnedMemory results_;
  detail::PinnedMemory staging_;
  Index slot_bytes_ = 0;
  std::array<detail::Event, 8> slots_;  // of the staging memory; each marks the end of the work that reads its slot
  std::size_t next_slot_ = 0;
};

}  // namespace lazyllm::cuda
