#pragma once

#include "examples/llama/base.hpp"
#include "examples/llama/checkpoint/model_config.hpp"

namespace llama {

/// Floating-point operations per second of the GEMM library alone, called directly with packed weights, on the matrix
/// products of one layer of a model for `rows` rows. `bf16` chooses the type of weights and rows, else f32; without
/// AVX-512 they are f32, since oneDNN has no products in bf16 there.
double gemm_rate(const ModelConfig& config, Index rows, bool bf16, int threads);

}  // namespace llama
