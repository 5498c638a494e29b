#include "examples/llama/model/any_model.hpp"

#include "examples/llama/base.hpp"
#include "examples/llama/model/cpu.hpp"
#include "examples/llama/model/held_model.hpp"
#ifdef LAZYLLM_HAS_CUDA
#include "examples/llama/model/cuda/cuda_model.hpp"
#endif

namespace llama {

std::unique_ptr<AnyModel> open_model(const ModelConfig& config, const WeightSource& weights,
                                     const Placement& placement) {
  const auto& [device, dtype, threads] = placement;
  if (device == "cuda") {
#ifdef LAZYLLM_HAS_CUDA
    return open_cuda_model(config, weights, dtype);
#else
    fail("--device cuda: this build has no CUDA; configure one with cmake --preset cuda or -DLAZYLLM_CUDA=ON");
#endif
  }
  if (device != "cpu") fail("--device ", device, " is not one of cpu and cuda");
  if (dtype == "f32") return std::make_unique<HeldModel<float, CpuDevice>>(config, weights, threads);
  if (dtype == "bf16") return std::make_unique<HeldModel<Eigen::bfloat16, CpuDevice>>(config, weights, threads);
  fail("--dtype ", dtype, " is not one of f32 and bf16, the types on the CPU");
}

}  // namespace llama
