#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "lazyllm/core/positions.hpp"
#include "lazyllm/core/rows.hpp"
#include "lazyllm/error.hpp"

namespace lazyllm::cuda {

namespace detail {

/// Throws `cuda_error` unless `code` is success.
inline void check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // so that the next call does not report this one again
  throw cuda_error(std::string("lazyllm: ") + call + ": " + cudaGetErrorString(code));
}

/// For calls that must not throw: takes care that no later call reports their error as its own.
inline void forget(cudaError_t code) noexcept {
  if (code != cudaSuccess) cudaGetLastError();
}

}  // namespace detail

/// Device memory in the order of a stream: allocating and freeing are enqueued, so later work on the stream may use the
/// memory, and earlier work may still use it once it has been freed.
struct DeviceAllocator {
  static constexpr const char* call = "cudaMallocAsync";

  static cudaError_t allocate(void** memory, Index bytes, cudaStream_t stream) {
    return cudaMallocAsync(memory, static_cast<std::size_t>(bytes), stream);
  }
  static void free(void* memory, cudaStream_t stream) noexcept { detail::forget(cudaFreeAsync(memory, stream)); }
};

/// Page-locked host memory, which both sides can read and write. Allocated at once; freeing waits for the stream, whose
/// work may use it.
struct PinnedAllocator {
  static constexpr const char* call = "cudaMallocHost";

  static cudaError_t allocate(void** memory, Index bytes, cudaStream_t) {
    return cudaMallocHost(memory, static_cast<std::size_t>(bytes));
  }
  static void free(void* memory, cudaStream_t stream) noexcept {
    detail::forget(cudaStreamSynchronize(stream));
    detail::forget(cudaFreeHost(memory));
  }
};

/// Memory of a stream, which must outlive it. Move-only.
template <class Allocator>
class Memory {
 public:
  Memory() = default;

  /// Throws `cuda_error` if there is not that much.
  Memory(cudaStream_t stream, Index bytes) : stream_(stream), bytes_(bytes) {
    void* memory = nullptr;
    const cudaError_t code = Allocator::allocate(&memory, bytes, stream);
    if (code != cudaSuccess) {
      detail::check(code, (std::string(Allocator::call) + " of " + std::to_string(bytes) + " bytes").c_str());
    }
    data_ = static_cast<std::byte*>(memory);
  }
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    Memory(std::move(other)).swap(*this);
    return *this;
  }
  ~Memory() {
    if (data_ != nullptr) Allocator::free(data_, stream_);
  }

  std::byte* data() const { return data_; }
  Index bytes() const { return bytes_; }
  cudaStream_t stream() const { return stream_; }

 private:
  void swap(Memory& other) noexcept {
    std::swap(stream_, other.stream_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  cudaStream_t stream_ = nullptr;
  std::byte* data_ = nullptr;
  Index bytes_ = 0;
};

using DeviceMemory = Memory<DeviceAllocator>;
using PinnedMemory = Memory<PinnedAllocator>;

/// A CUDA event without timing. Move-only; empty until `record`.
class Event {
 public:
  Event() = default;
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event() {
    if (event_ != nullptr) detail::forget(cudaEventDestroy(event_));
  }

  /// Marks the end of the work that is on the stream now. Throws `cuda_error`.
  void record(cudaStream_t stream) {
    if (event_ == nullptr) detail::check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
    detail::check(cudaEventRecord(event_, stream), "cudaEventRecord");
  }

  /// Waits for the work before the last `record`, if there was one. Throws `cuda_error`.
  void wait() const {
    if (event_ != nullptr) detail::check(cudaEventSynchronize(event_), "cudaEventSynchronize");
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Growable matrix; growing keeps the rows. New rows are uninitialised. All work is enqueued on the context's stream,
/// which must outlive the buffer and stays the buffer's: on another one, rows could be overwritten while they are read.
template <class Context, class T, class Allocator>
class GrowingRows {
 public:
  using value_type = T;

  /// Makes room for `rows` rows of `width` elements, at least doubling what is there when it must grow. The width may
  /// only change while the buffer is empty. Throws, and changes nothing, `cuda_error` if there is no memory and
  /// `invalid_argument` for a context of another stream.
  void reserve(Context& context, Index rows, Index width) {
    if (rows_ > 0 && memory_.stream() != context.stream()) {
      lazyllm::detail::fail("cuda: rows of stream ", memory_.stream(), " are used with a context of stream ",
                            context.stream(), "; they must be the same");
    }
    if (rows <= rows_) return;
    const Index grown = rows_ == 0 ? rows : std::max(rows, 2 * rows_);
    Memory<Allocator> memory(context.stream(), grown * width * static_cast<Index>(sizeof(T)));
    if (rows_ > 0) {
      detail::check(cudaMemcpyAsync(memory.data(), memory_.data(), static_cast<std::size_t>(rows_ * width_) * sizeof(T),
                                    cudaMemcpyDefault, context.stream()),
                    "cudaMemcpyAsync");
    }
    memory_ = std::move(memory);
    rows_ = grown;
    width_ = width;
  }

  /// All rows that there is room for.
  RowsView<T> rows() const { return {reinterpret_cast<T*>(memory_.data()), rows_, width_}; }

 private:
  Memory<Allocator> memory_;
  Index rows_ = 0;
  Index width_ = 0;
};

}  // namespace lazyllm::cuda
