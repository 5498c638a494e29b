#include "examples/llama/model/any_model.hpp"

#include <fstream>

#include "examples/llama/base.hpp"
#include "examples/llama/model/adapters.hpp"
#include "examples/llama/model/cpu.hpp"
#include "examples/llama/model/host_memory.hpp"
#ifdef LLAMA_HAS_CUDA
#include "examples/llama/model/cuda/cuda_model.hpp"
#endif

namespace llama {

std::unique_ptr<AnyModel> open_model(const ModelConfig& config, const WeightSource& weights,
                                     const Placement& placement) {
  const std::string& dtype = placement.dtype;
  const std::shared_ptr<RankGroup>& group = placement.group;
  const bool int8 = placement.int8;
  if (placement.device == "cuda") {
    if (int8) fail("--weights int8: on a CUDA device there are none; allowed is dtype");
    if (group) fail("--device cuda: ranks run on the CPU only");
#ifdef LLAMA_HAS_CUDA
    return open_cuda_model(config, weights, dtype);
#else
    fail("--device cuda: this build has no CUDA; configure one with cmake --preset cuda or -DLAZYLLM_CUDA=ON");
#endif
  }
  if (placement.device != "cpu") fail("--device ", placement.device, " is not one of cpu and cuda");
  std::ifstream meminfo("/proc/meminfo");
  check_weights_fit(config, placement, available_bytes(meminfo));
  const CpuExecution execution(placement.threads, int8 ? WeightFormat::int8 : WeightFormat::as_type);
  return with_memory_for_weights(config, placement, [&]() -> std::unique_ptr<AnyModel> {
    if (dtype == "f32") return std::make_unique<ModelAdapter<float, CpuDevice>>(config, weights, execution, group);
    if (dtype == "bf16")
      return std::make_unique<ModelAdapter<Eigen::bfloat16, CpuDevice>>(config, weights, execution, group);
    fail("--dtype ", dtype, " is not one of f32 and bf16, the types on the CPU");
  });
}

}  // namespace llama
