#include "bench/examples/llama/model/device_cases.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/examples/llama/model/device_ttft.hpp"
#include "bench/examples/llama/model/random_weights.hpp"
#include "bench/examples/llama/model/shapes.hpp"
#include "examples/llama/program/timing.hpp"

namespace llama {

nlohmann::ordered_json run_on_device(const TtftOptions& options, const SaveCases& save) {
  if (options.int8) fail("--weights int8: only the CPU has it");
  if (options.dtype != "bf16") fail("--dtype ", options.dtype, ": on a CUDA device it is bf16");
  const Clock::time_point start = Clock::now();
  const ModelConfig config = shape_named(options.shape);
  struct Case {
    DeviceCase what;
    lazyllm::TokenPruner<lazyllm::AnyPolicy> pruner;
  };
  std::vector<Case> cases;
  nlohmann::ordered_json entries = nlohmann::ordered_json::array();
  for (const Index prompt : options.prompts) {
    for (const Index batch : options.batches) {
      for (const PruningOptions& pruning : options.prunings()) {
        const PruningOptions whole = resolved(pruning, config.layers, widths_of(config));
        say_if_not_pruned(whole, prompt);
        const std::optional<Index> revived = whole.decode_revived;
        cases.push_back({{prompt, batch, std::min(options.generate, prompt), options.repeats},
                         make_pruner(whole, config.layers, widths_of(config))});
        entries.push_back({{"device", options.device},
                           {"gpu", ""},
                           {"shape", options.shape},
                           {"dtype", options.dtype},
                           {"schedule", pruning.schedule},
                           {"decode_revived", revived ? nlohmann::ordered_json(*revived) : nullptr},
                           {"prompt_tokens", prompt},
                           {"batch", batch}});
      }
    }
  }
  const std::string gpu = device_name();  // what is wrong with the options is found without a device
  for (auto& entry : entries) entry["gpu"] = gpu;
  std::optional<DeviceBench> bench;
  const auto time_left = [&] {
    return !options.seconds || std::chrono::duration<double>(Clock::now() - start).count() <= *options.seconds;
  };
  const auto measure_one = [&](std::size_t i) {
    try {
      if (!bench) bench.emplace(config, random_weights<Eigen::bfloat16>(config));
    } catch (const lazyllm::cuda_error& error) {
      throw std::runtime_error(error.what());  // weights for which there is no memory are no single case's
    }
    return report(cases[i].what, bench->measure(cases[i].what, cases[i].pruner), bench->weight_bytes());
  };
  return measure_cases(std::move(entries), time_left, measure_one, save);
}

}  // namespace llama
