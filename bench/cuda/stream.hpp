#pragma once

#include <cuda_runtime_api.h>

#include "lazyllm/backend/cuda/memory.hpp"

namespace lazyllm::bench {

/// A stream of its own. Throws `cuda_error` if it cannot be made.
class Stream {
 public:
  Stream() { cuda::detail::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// A point in the work of a stream.
class StreamMark {
 public:
  StreamMark() { cuda::detail::check(cudaEventCreate(&event_), "cudaEventCreate"); }
  StreamMark(const StreamMark&) = delete;
  StreamMark& operator=(const StreamMark&) = delete;
  ~StreamMark() { cudaEventDestroy(event_); }

  void set(cudaStream_t stream) { cuda::detail::check(cudaEventRecord(event_, stream), "cudaEventRecord"); }

  /// From the other mark to this one, which it waits for. Throws `cuda_error` if any of the work failed.
  double milliseconds_since(const StreamMark& earlier) const {
    float time = 0;
    cuda::detail::check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    cuda::detail::check(cudaEventElapsedTime(&time, earlier.event_, event_), "cudaEventElapsedTime");
    return time;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// The time that work on a stream takes, between two marks.
class StreamTimer {
 public:
  void start(cudaStream_t stream) { start_.set(stream); }
  void stop(cudaStream_t stream) { stop_.set(stream); }

  /// From the last `start` to the last `stop`, which it waits for. Throws `cuda_error` if any of the work failed.
  double milliseconds() const { return stop_.milliseconds_since(start_); }

 private:
  StreamMark start_, stop_;
};

/// Enqueues `call()` as many times as `calls` says, one after the other as a decoder does, and returns the milliseconds
/// of each: what it takes the stream, or the host to enqueue it, whichever is longer.
template <class Call>
double milliseconds_per_call(StreamTimer& timer, cudaStream_t stream, int calls, const Call& call) {
  timer.start(stream);
  for (int i = 0; i < calls; ++i) call();
  timer.stop(stream);
  return timer.milliseconds() / calls;
}

}  // namespace lazyllm::bench
