#include "support/cuda_emulation.hpp"
// The emulation comes before what it emulates.
#include <doctest/doctest.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "lazyllm/cuda.cuh"
#include "lazyllm/nccl.hpp"

using namespace lazyllm;

namespace {

/// What the NCCL of this test does: rank 1 of 2, whose peer gives 5 for every number.
struct PlayedNccl {
  ncclResult_t started = ncclSuccess;
  ncclResult_t state = ncclSuccess;
  ncclResult_t asked = ncclSuccess;      ///< answer to the question for the state
  cudaError_t work = cudaErrorNotReady;  ///< answer to the question for the work, if it is an error
  int busy = 0;                          ///< questions that are answered by `ncclInProgress`
  bool silent = false;
  int aborted = 0;
} played;

class Stream {
 public:
  Stream() { cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace

extern "C" {

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  CHECK(played.busy <= 0);
  if (played.work != cudaErrorNotReady) return played.work;
  return played.silent ? cudaErrorNotReady : cudaStreamSynchronize(stream);
}
ncclResult_t ncclAllReduce(const void* source, void* target, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t, cudaStream_t stream) {
  if (played.started != ncclSuccess && played.started != ncclInProgress) return played.started;
  CHECK(type == ncclInt64);
  CHECK(source == target);
  CHECK(lazyllm::test::cuda_emulation::is_on_device(target));
  lazyllm::test::cuda_emulation::enqueue(stream, [=] {
    for (std::int64_t& value : std::span(static_cast<std::int64_t*>(target), count)) {
      value = op == ncclSum ? value + 5 : std::max<std::int64_t>(value, 5);
    }
  });
  return played.started;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  *state = played.busy-- > 0 ? ncclInProgress : played.state;
  return played.asked;
}
ncclResult_t ncclCommAbort(ncclComm_t) {
  ++played.aborted;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t, int* rank) {
  *rank = 1;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t, int* count) {
  *count = 2;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "a peer is gone" : "another error";
}
}

TEST_CASE("NCCL: numbers go through the device") {
  played = {};
  const Stream stream;
  const Ranks::AllReduce all_reduce = nccl_all_reduce(nullptr, stream);
  std::vector<std::int64_t> values = {-7, 1, 9};
  all_reduce(values, ReduceOp::sum);
  CHECK(values == std::vector<std::int64_t>{-2, 6, 14});
  all_reduce(values, ReduceOp::max);
  CHECK(values == std::vector<std::int64_t>{5, 6, 14});
  CHECK(played.aborted == 0);
}

TEST_CASE("NCCL: ranks are those of the communicator") {
  const Stream stream;
  const Ranks ranks = nccl_ranks(nullptr, stream);
  CHECK(ranks.rank() == 1);
  CHECK(ranks.count() == 2);
}

TEST_CASE("NCCL: an error, or no answer, ends the wait and the communicator") {
  const Stream stream;
  std::int64_t value = 1;
  const auto run = [&](std::chrono::milliseconds patience) {
    nccl_all_reduce(nullptr, stream, patience)(std::span(&value, 1), ReduceOp::sum);
  };
  for (const auto& [nccl, message] :
       {std::pair<PlayedNccl, const char*>{{.state = ncclRemoteError}, "lazyllm: ncclAllReduce: a peer is gone"},
        {{.started = ncclRemoteError}, "lazyllm: ncclAllReduce: a peer is gone"},
        {{.asked = ncclRemoteError}, "lazyllm: ncclAllReduce: ncclCommGetAsyncError: a peer is gone"}}) {
    played = nccl;
    CHECK_THROWS_WITH_AS(run(std::chrono::seconds(10)), message, rank_error);
    CHECK(played.aborted == 1);
  }
  played = {.silent = true};
  CHECK_THROWS_WITH_AS(run(std::chrono::milliseconds(20)), "lazyllm: ncclAllReduce: no answer within 20 ms",
                       rank_error);
  CHECK(played.aborted == 1);
  played = {.work = cudaErrorMemoryAllocation};
  CHECK_THROWS_WITH_AS(run(std::chrono::seconds(10)), doctest::Contains("ncclAllReduce: cudaStreamQuery: "),
                       rank_error);
  CHECK(played.aborted == 1);
  played = {};
}

TEST_CASE("NCCL: a communicator that does not block is waited for") {
  const Stream stream;
  played = {.started = ncclInProgress, .busy = 3};
  std::int64_t value = -2;
  nccl_all_reduce(nullptr, stream)(std::span(&value, 1), ReduceOp::sum);
  CHECK(value == 3);
  played = {};
}

TEST_CASE("NCCL: an aborted communicator is not used again") {
  const Stream stream;
  std::int64_t value = 1;
  const Ranks::AllReduce all_reduce = nccl_all_reduce(nullptr, stream, std::chrono::milliseconds(20));
  played = {.silent = true};
  CHECK_THROWS_AS(all_reduce(std::span(&value, 1), ReduceOp::sum), rank_error);
  played = {};
  CHECK_THROWS_WITH_AS(all_reduce(std::span(&value, 1), ReduceOp::sum),
                       "lazyllm: ncclAllReduce: the communicator was aborted after an earlier error", rank_error);
  CHECK(value == 1);
  CHECK(played.aborted == 0);
}
