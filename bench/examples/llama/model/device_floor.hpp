#pragma once

#include <cuda_runtime_api.h>

#include "bench/examples/llama/model/device_times.hpp"
#include "examples/llama/base.hpp"
#include "examples/llama/checkpoint/model_config.hpp"

namespace llama {

/// Measures the floor for `batch` prompts of `prompt` tokens. Each product runs by the fastest of the algorithms that
/// cuBLASLt proposes for it. Throws `lazyllm::cuda_error`.
DeviceFloor device_floor(const ModelConfig& config, Index prompt, Index batch, cudaStream_t stream);

}  // namespace llama
