#pragma once

#include <memory>
#include <string_view>

#include "examples/llama/model/any_model.hpp"

/// \file
/// Models on a CUDA device, for host code: no CUDA header is needed.
namespace llama {

/// Loads a model to the current device. `dtype` is f32, f16 or bf16. Throws `lazyllm::cuda_error` if there is no
/// device or not enough of its memory, and what `weights` throws.
std::unique_ptr<AnyModel> open_cuda_model(const ModelConfig& config, const WeightSource& weights,
                                          std::string_view dtype);

/// The same for one type each; they do not look for a device first.
std::unique_ptr<AnyModel> open_cuda_model_f32(const ModelConfig& config, const WeightSource& weights);
std::unique_ptr<AnyModel> open_cuda_model_f16(const ModelConfig& config, const WeightSource& weights);
std::unique_ptr<AnyModel> open_cuda_model_bf16(const ModelConfig& config, const WeightSource& weights);

}  // namespace llama
