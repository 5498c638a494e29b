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

/// The time that work on a stream takes, between two events.
class StreamTimer {
 public:
  StreamTimer() {
    for (cudaEvent_t& event : events_) cuda::detail::check(cudaEventCreate(&event), "cudaEventCreate");
  }
  StreamTimer(const StreamTimer&) = delete;
  StreamTimer& operator=(const StreamTimer&) = delete;
  ~StreamTimer() {
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  }

  void start(cudaStream_t stream) { cuda::detail::check(cudaEventRecord(events_[0], stream), "cudaEventRecord"); }
  void stop(cudaStream_t stream) { cuda::detail::check(cudaEventRecord(events_[1], stream), "cudaEventRecord"); }

  /// From the last `start` to the last `stop`, which it waits for. Throws `cuda_error` if any of the work failed.
  double milliseconds() const {
    float time = 0;
    cuda::detail::check(cudaEventSynchronize(events_[1]), "cudaEventSynchronize");
    cuda::detail::check(cudaEventElapsedTime(&time, events_[0], events_[1]), "cudaEventElapsedTime");
    return time;
  }

 private:
  cudaEvent_t events_[2] = {};
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
