#include "examples/llama/model/cuda/load.cuh"

namespace llama {

std::unique_ptr<AnyModel> open_cuda_model_f32(const ModelConfig& config, const WeightSource& weights) {
  return load_to_device<float>(config, weights);
}

}  // namespace llama
