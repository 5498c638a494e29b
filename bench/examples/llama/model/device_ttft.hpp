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

  /// Runs a case dense and with everything kept in turn, then dense and pruned in turn. Each pair is warmed up for
  /// `warm_up_ms` at least, so that clocks have risen. Short prefills have more turns, so that their noise is told from
  /// an overhead of one percent. Throws `lazyllm::cuda_error` without memory for two decoders; other cases can follow.
  DeviceTimes measure(const DeviceCase& what, const lazyllm::TokenPruner<lazyllm::AnyPolicy>& pruner);

  static constexpr double warm_up_ms = 200;
  static constexpr double timed_ms = 1000;  ///< of prefills of each of a pair, unless that takes too many or too few
  static constexpr Index max_turns = 40;

  Index weight_bytes() const;  ///< that a decode step reads

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llama
