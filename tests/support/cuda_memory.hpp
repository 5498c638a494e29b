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

/// A list in device memory.
template <class T>
class DeviceArray {
 public:
  DeviceArray(cuda::Context& context, const std::vector<T>& values) : context_(&context), size_(values.size()) {
    memory_.reserve(context, static_cast<Index>(size_ + 1), 1);  // one more, so that there is memory for an empty list
    copy_from_host(context, values.data(), rows());
  }

  std::span<T> span() { return {memory_.rows().data, size_}; }
  const T* data() const { return memory_.rows().data; }

  /// The values once the work on the stream has run.
  std::vector<T> download() const {
    std::vector<T> values(size_);
    copy_to_host(*context_, RowsView<const T>(rows()), values.data());
    return values;
  }

 private:
  RowsView<T> rows() const { return memory_.rows().subrows(0, static_cast<Index>(size_)); }

  cuda::Context* context_;
  cuda::Context::Buffer<T> memory_;
  std::size_t size_;
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
    copy_from_host(context, values.data(), RowsView<T>(target, std::ssize(values), 1));
  }

  /// The elements of `rows` without gaps, once the work on the stream has run.
  template <class T>
  static std::vector<T> read(cuda::Context& context, RowsView<T> rows) {
    std::vector<T> values(static_cast<std::size_t>(rows.rows * rows.width));
    copy_to_host(context, RowsView<const T>(rows), values.data());
    return values;
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
