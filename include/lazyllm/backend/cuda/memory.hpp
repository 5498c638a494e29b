#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/engine/rows.hpp"

namespace lazyllm::cuda::detail {

/// Throws `cuda_error` unless `code` is success.
inline void check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // clears it, or the next call would report it again
  lazyllm::detail::fail<cuda_error>(call, ": ", cudaGetErrorString(code));
}

/// Clears the error of a call that must not throw.
inline void forget(cudaError_t code) noexcept {
  if (code != cudaSuccess) cudaGetLastError();
}

/// Device memory in stream order: earlier work on the stream may still use memory that has been freed.
struct DeviceAllocator {
  static constexpr const char* call = "cudaMallocAsync";

  static cudaError_t allocate(void** memory, Index bytes, cudaStream_t stream) {
    return cudaMallocAsync(memory, static_cast<std::size_t>(bytes), stream);
  }
  static void free(void* memory, cudaStream_t stream) noexcept { forget(cudaFreeAsync(memory, stream)); }
};

/// Page-locked host memory, which the device can read and write. Freeing waits for the work on the stream.
struct PinnedAllocator {
  static constexpr const char* call = "cudaMallocHost";

  static cudaError_t allocate(void** memory, Index bytes, cudaStream_t) {
    return cudaMallocHost(memory, static_cast<std::size_t>(bytes));
  }
  static void free(void* memory, cudaStream_t stream) noexcept {
    forget(cudaStreamSynchronize(stream));
    forget(cudaFreeHost(memory));
  }
};

/// Memory for work on a stream. The stream must outlive the memory. Move-only.
template <class Allocator>
class Memory {
 public:
  Memory() = default;

  /// Throws `cuda_error` if there is not that much.
  Memory(cudaStream_t stream, Index bytes) : stream_(stream), bytes_(bytes) {
    void* memory = nullptr;
    const cudaError_t code = Allocator::allocate(&memory, bytes, stream);
    if (code != cudaSuccess) {
      check(code, (std::string(Allocator::call) + " of " + std::to_string(bytes) + " bytes").c_str());
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

  /// Makes it at least `bytes` large, at least doubling it when it must grow; what it held is lost then. Throws
  /// `cuda_error` if there is not that much.
  void grow(cudaStream_t stream, Index bytes) {
    if (bytes > bytes_) *this = Memory(stream, std::max(bytes, 2 * bytes_));
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
    if (event_ != nullptr) forget(cudaEventDestroy(event_));
  }

  /// Marks the end of the work that is on the stream now. Throws `cuda_error`.
  void record(cudaStream_t stream) {
    if (event_ == nullptr) check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
    check(cudaEventRecord(event_, stream), "cudaEventRecord");
  }

  /// Waits for the work before the last `record`, if there was one. Throws `cuda_error`.
  void wait() const {
    if (event_ != nullptr) check(cudaEventSynchronize(event_), "cudaEventSynchronize");
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Growable matrix; growing keeps the rows. New rows are uninitialised. All its work is on the stream of the context
/// that it was first reserved with, which must outlive it. On another stream, rows could be overwritten while they are
/// read.
template <class Context, class T, class Allocator>
class Buffer {
 public:
  using value_type = T;

  /// Makes room for `rows` rows of `width` elements, at least doubling what is there when it must grow. The width may
  /// only change while the buffer is empty. Throws, and changes nothing, `cuda_error` if there is no memory and
  /// `invalid_argument` for a context of another stream.
  void reserve(Context& context, Index rows, Index width) {
    check(context);
    const RowsView<T> old = this->rows();
    if (rows <= old.rows) return;
    const Index grown = old.rows == 0 ? rows : std::max(rows, 2 * old.rows);
    Memory<Allocator> memory(context.stream(), grown * width * static_cast<Index>(sizeof(T)));
    if (old.rows > 0) {
      detail::check(cudaMemcpyAsync(memory.data(), old.data, static_cast<std::size_t>(old.rows * old.width) * sizeof(T),
                                    cudaMemcpyDefault, context.stream()),
                    "cudaMemcpyAsync");
    }
    memory_ = std::move(memory);
    rows_ = grown;
    width_ = width;
  }

  /// Throws `invalid_argument` for a context of another stream than the rows'.
  void check(const Context& context) const {
    if (rows().rows > 0 && memory_.stream() != context.stream()) {
      lazyllm::detail::fail("cuda: rows of stream ", memory_.stream(), " are used with a context of stream ",
                            context.stream(), "; they must be the same");
    }
  }

  /// All rows that there is room for, none where the buffer was moved from.
  RowsView<T> rows() const {
    auto* const data = reinterpret_cast<T*>(memory_.data());
    return {data, data == nullptr ? 0 : rows_, width_};
  }

 private:
  Memory<Allocator> memory_;
  Index rows_ = 0;
  Index width_ = 0;
};

}  // namespace lazyllm::cuda::detail
