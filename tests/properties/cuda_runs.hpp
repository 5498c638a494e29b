#pragma once

#include "properties/random_runs.hpp"
#include "support/device_blocks.hpp"

/// \file
/// Random runs on the CUDA backend, for a device and for its emulation.

namespace lazyllm::test {

TEST_CASE("cuda random runs: own storage, feed-forwards that differ by request, every score") {
  random_runs<CudaMemory, cuda::OwnStorage<float>, DeviceAttention<float>, DeviceAdaptedFeedForward<float>>(50);
}

TEST_CASE("cuda random runs: pooled storage, bfloat16 rows") {
  random_runs<CudaMemory, cuda::PooledStorage<__nv_bfloat16>, DeviceAttention<__nv_bfloat16>,
              DeviceFeedForward<__nv_bfloat16>>(20);
}

TEST_CASE("cuda random runs: pinned storage, half rows") {
  random_runs<CudaMemory, cuda::PinnedStorage<__half>, DeviceAttention<__half>, DeviceFeedForward<__half>>(20);
}

/// Beside `random runs: plain scores` on the CPU: both keep what the same reference keeps.
TEST_CASE("cuda random runs: plain scores, so that the CPU keeps the same tokens") {
  random_runs<CudaMemory, cuda::OwnStorage<float>, PlainlyScored<float, CudaMemory, DeviceAttention<float>>,
              DeviceFeedForward<float>, PlainMemory>(50);
}

}  // namespace lazyllm::test
