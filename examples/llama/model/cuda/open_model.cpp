#include <cuda_runtime_api.h>

#include <string>

#include "examples/llama/library.hpp"
#include "examples/llama/model/cuda/cuda_model.hpp"

namespace llama {

std::unique_ptr<AnyModel> open_cuda_model(const ModelConfig& config, const WeightSource& weights,
                                          std::string_view dtype) {
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code != cudaSuccess || devices == 0) {
    cudaGetLastError();  // so that the next call does not report this one again
    throw lazyllm::cuda_error(std::string("--device cuda: no CUDA device: ") +
                              cudaGetErrorString(code == cudaSuccess ? cudaErrorNoDevice : code));
  }
  if (dtype == "f32") return open_cuda_model_f32(config, weights);
  if (dtype == "f16") return open_cuda_model_f16(config, weights);
  if (dtype == "bf16") return open_cuda_model_bf16(config, weights);
  fail("--dtype ", dtype, " is not one of f32, f16 and bf16, the types on a CUDA device");
}

}  // namespace llama
