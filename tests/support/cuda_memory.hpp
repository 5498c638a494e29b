#pragma once

#include <span>
#include <vector>

#include "lazyllm/cuda.cuh"

namespace lazyllm::test {

/// The stream of all CUDA tests.
inline cudaStream_t cuda_stream() {
  static const cudaStream_t stream = [] {
    cudaStream_t created = nullptr;
    cuda::detail::check(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return created;
  }();
  return stream;
}

/// What `source` on the device holds once the work on the stream has run.
template <class T>
std::vector<T> downloaded(cuda::Context& context, std::span<const T> source) {
  std::vector<T> values(source.size());
  cuda::detail::check(
      cudaMemcpyAsync(values.data(), source.data(), source.size_bytes(), cudaMemcpyDeviceToHost, context.stream()),
      "cudaMemcpyAsync");
  context.synchronize();
  return values;
}

/// A list in device memory.
template <class T>
class DeviceArray {
 public:
  DeviceArray(cuda::Context& context, const std::vector<T>& values)
      : context_(&context), memory_(context.stream(), static_cast<Index>((values.size() + 1) * sizeof(T))) {
    span_ = {reinterpret_cast<T*>(memory_.data()), values.size()};
    context.upload(std::span<const T>(values), span_.data());
  }

  std::span<T> span() { return span_; }
  const T* data() const { return span_.data(); }

  std::vector<T> download() const { return downloaded(*context_, std::span<const T>(span_)); }

 private:
  cuda::Context* context_;
  cuda::DeviceMemory memory_;
  std::span<T> span_;
};

/// The CUDA backend as tests for any backend see it.
struct CudaMemory {
  static cuda::Context make_context(int = 1) { return cuda::Context(cuda_stream()); }

  template <class T>
  static DeviceArray<T> upload(cuda::Context& context, const std::vector<T>& values) {
    return {context, values};
  }

  /// Copies `values` to `target`.
  template <class T>
  static void write(cuda::Context& context, const std::vector<T>& values, T* target) {
    context.upload(std::span<const T>(values), target);
  }

  /// The elements of `rows`, which have no gaps.
  template <class T>
  static std::vector<T> read(cuda::Context& context, RowsView<T> rows) {
    return downloaded(context, std::span<const T>(rows.data, static_cast<std::size_t>(rows.rows * rows.width)));
  }
};

/// The same with a stream of its own for each context; the streams stay until the program ends.
struct OwnStreamMemory : CudaMemory {
  static cuda::Context make_context(int = 1) {
    cudaStream_t stream = nullptr;
    cuda::detail::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return cuda::Context(stream);
  }
};

}  // namespace lazyllm::test
