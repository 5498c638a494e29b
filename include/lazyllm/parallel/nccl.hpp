#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <thread>

#include "lazyllm/backend/cuda/context.hpp"
#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/parallel/ranks.hpp"

namespace lazyllm {

namespace detail {

/// Whether `result` is neither that of success nor of a communicator that does not block.
inline bool nccl_failed(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

/// Throws `rank_error` if the call has failed.
inline void check_nccl(ncclResult_t result, const char* call) {
  if (nccl_failed(result)) fail<rank_error>(call, ": ", ncclGetErrorString(result));
}

}  // namespace detail

/// `ncclAllReduce` on `communicator`, enqueued on `stream`; both must outlive what is returned. The numbers go to the
/// device and come back: 8 bytes for each number, see 'More than one machine' in docs/integrating.md. Where a rank is
/// gone, NCCL says so or is silent: after an error, or `patience` without an answer, the communicator is aborted, which
/// frees it, and `rank_error` is thrown, by later calls, too. `patience` begins with the call: what the stream still
/// has to do, and slower ranks, count.
inline Ranks::AllReduce nccl_all_reduce(ncclComm_t communicator, cudaStream_t stream,
                                        std::chrono::milliseconds patience = std::chrono::seconds(10)) {
  const auto aborted = std::make_shared<bool>(false);
  const auto give_up = [communicator, aborted](auto... reasons) {
    *aborted = true;
    ncclCommAbort(communicator);
    detail::fail<rank_error>("ncclAllReduce: ", reasons...);
  };
  const auto wait = [communicator, stream, patience, give_up] {
    const auto end = std::chrono::steady_clock::now() + patience;
    for (;;) {
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(communicator, &state);
      if (detail::nccl_failed(asked)) give_up("ncclCommGetAsyncError: ", ncclGetErrorString(asked));
      if (detail::nccl_failed(state)) give_up(ncclGetErrorString(state));
      // While the communicator is at it, the stream need not have the work yet.
      const cudaError_t work = state == ncclInProgress ? cudaErrorNotReady : cudaStreamQuery(stream);
      if (work == cudaSuccess) return;
      if (work != cudaErrorNotReady) give_up("cudaStreamQuery: ", cudaGetErrorString(work));
      if (std::chrono::steady_clock::now() > end) give_up("no answer within ", patience.count(), " ms");
      std::this_thread::yield();
    }
  };
  const auto context = std::make_shared<cuda::Context>(stream);
  return [communicator, stream, context, wait, give_up, aborted](std::span<std::int64_t> values, ReduceOp op) {
    if (*aborted) detail::fail<rank_error>("ncclAllReduce: the communicator was aborted after an earlier error");
    const auto bytes = static_cast<Index>(values.size_bytes());
    std::byte* const device = context->workspace(bytes);
    context->upload(std::span<const std::int64_t>(values), reinterpret_cast<std::int64_t*>(device));
    const ncclResult_t enqueued = ncclAllReduce(device, device, values.size(), ncclInt64,
                                                op == ReduceOp::sum ? ncclSum : ncclMax, communicator, stream);
    if (detail::nccl_failed(enqueued)) give_up(ncclGetErrorString(enqueued));
    wait();
    const std::byte* const host = context->fetch(bytes, [&](std::byte* target) {
      cuda::detail::check(cudaMemcpyAsync(target, device, values.size_bytes(), cudaMemcpyDeviceToHost, stream),
                          "cudaMemcpyAsync");
    });
    std::memcpy(values.data(), host, values.size_bytes());
  };
}

/// The ranks of `communicator`; see `nccl_all_reduce`.
inline Ranks nccl_ranks(ncclComm_t communicator, cudaStream_t stream,
                        std::chrono::milliseconds patience = std::chrono::seconds(10)) {
  int rank = 0;
  int count = 0;
  detail::check_nccl(ncclCommUserRank(communicator, &rank), "ncclCommUserRank");
  detail::check_nccl(ncclCommCount(communicator, &count), "ncclCommCount");
  return Ranks(rank, count, nccl_all_reduce(communicator, stream, patience));
}

}  // namespace lazyllm
