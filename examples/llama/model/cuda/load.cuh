#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "examples/llama/model/adapters.hpp"
#include "examples/llama/model/any_model.hpp"
#include "examples/llama/model/cuda/cuda_model.hpp"
#include "examples/llama/model/cuda/device.cuh"

namespace llama {

/// The stream of all models of the program. Memory that one sequence gives back stays in the device's pool for the
/// next, without a detour through the driver.
inline cudaStream_t model_stream() {
  static const cudaStream_t stream = [] {
    int device = 0;
    kernels::check(cudaGetDevice(&device), "cudaGetDevice");
    cudaMemPool_t pool = nullptr;
    kernels::check(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
    std::uint64_t kept = std::numeric_limits<std::uint64_t>::max();
    kernels::check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept), "cudaMemPoolSetAttribute");
    cudaStream_t created = nullptr;
    kernels::check(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return created;
  }();
  return stream;
}

/// Elements of all weights.
inline Index weight_count(const ModelConfig& config) {
  const Index attention = 2 * config.hidden_size * (config.heads + config.kv_heads) * config.head_dim;
  const Index layer = attention + 3 * config.hidden_size * config.intermediate_size + 2 * config.hidden_size;
  return config.layers * layer + config.hidden_size +
         (config.tied_embeddings ? 1 : 2) * config.vocab * config.hidden_size;
}

template <class T>
std::unique_ptr<AnyModel> load_to_device(const ModelConfig& config, const WeightSource& weights) {
  try {
    return std::make_unique<ModelAdapter<T, CudaDevice>>(config, weights, model_stream());
  } catch (const lazyllm::cuda_error& error) {
    const Index bytes = weight_count(config) * static_cast<Index>(sizeof(T));
    throw error_at("the model's weights need " + in_mebibytes(bytes) + " on the device", error);
  }
}

}  // namespace llama
