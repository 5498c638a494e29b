#pragma once

#include <memory>
#include <string>

#include "bench/examples/llama/model/device_times.hpp"
#include "examples/llama/checkpoint/model_config.hpp"
#include "examples/llama/library.hpp"
#include "examples/llama/model/weight_source.hpp"

namespace llama {

/// Name of the current CUDA device. Throws `lazyllm::cuda_error` if there is none.
std::string device_name();

/// A randomly initialised model on the current CUDA device, in bfloat16. Throws `lazyllm::cuda_error`.
class DeviceBench {
 public:
  DeviceBench(const ModelConfig& config, const WeightSource& weights);
  ~DeviceBench();

  /// Runs a case dense, with everything kept and pruned, in turn. Each decoder is made anew and warmed up by a prefill
  /// before it is timed, so that only one needs memory at a time. Throws `lazyllm::cuda_error` without memory for it;
  /// other cases can follow.
  DeviceTimes measure(const DeviceCase& what, const lazyllm::TokenPruner<lazyllm::AnyPolicy>& pruner);

  Index weight_bytes() const;  ///< that a decode step reads

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llama
