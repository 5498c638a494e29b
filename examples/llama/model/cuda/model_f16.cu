#include "examples/llama/model/cuda/load.cuh"

namespace llama {

std::unique_ptr<AnyModel> open_cuda_model_f16(const ModelConfig& config, const WeightSource& weights) {
  return load_to_device<__half>(config, weights);
}

}  // namespace llama
