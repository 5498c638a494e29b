#include <doctest/doctest.h>

#include <string>

#include "examples/llama/kernels/cuda/causal_attention.hpp"

namespace llama {
namespace {

/// What cuDNN asks of a device of compute capability `version` / 100.
std::string device(int version) {
  return R"({"deviceName": "a device that is not there", "deviceVer": )" + std::to_string(version) +
         R"(, "driverVer": 13000, "cudaDeviceId": 0, "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1,
             "multiProcessorCount": 132, "warpSize": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048,
             "maxCtasPerSM": 32, "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
             "regsPerBlock": 65536, "maxRegistersPerSM": 65536, "maxSharedMemoryPerBlock": 49152,
             "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024, "l2CacheSize": 62914560,
             "totalGlobalMem": 150754820096, "smClockRateKHz": 1980000, "memClockRateKHz": 3201000})";
}

CausalProblem problem(Index rows, Index heads, Index kv_heads, Index head_dim) {
  return {.type = CUDA_R_16BF,
          .rows = rows,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .query_stride = (heads + 2 * kv_heads) * head_dim,
          .out_stride = heads * head_dim,
          .key_stride = head_dim,
          .kv_head_stride = 2 * rows * head_dim,
          .scale = 0.125F};
}

TEST_CASE("cuDNN has kernels for whole prompts on Hopper, of the shapes of the models") {
  CHECK(CausalAttention::compiles_for(problem(4096, 32, 32, 128), device(900)));
  CHECK(CausalAttention::compiles_for(problem(1000, 32, 8, 128), device(900)));
  CausalProblem half = problem(2048, 32, 4, 64);
  half.type = CUDA_R_16F;
  CHECK(CausalAttention::compiles_for(half, device(900)));
}

TEST_CASE("cuDNN has no kernel for heads that are no multiple of 16 bytes, and says what is wrong with a device") {
  CHECK_FALSE(CausalAttention::compiles_for(problem(512, 4, 4, 20), device(900)));
  CHECK_THROWS_AS(CausalAttention::compiles_for(problem(512, 4, 4, 64), "{}"), lazyllm::cuda_error);
}

}  // namespace
}  // namespace llama
