#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "examples/llama/base.hpp"
#include "examples/llama/program/pruning_options.hpp"

namespace llama {

/// What `ttft_bench` is asked for.
struct TtftOptions {
  std::string device = "cpu";
  std::string shape = "134m";
  std::vector<Index> prompts{2000};
  std::vector<Index> batches{1};
  PruningOptions pruning;
  std::vector<std::string> schedules;  // all that were given
  std::string dtype = "bf16";
  bool int8 = false;
  int threads = 2;
  Index generate = 68;
  Index repeats = 5;
  Index overhead_turns = 0;
  std::optional<double> seconds;
  std::string json;

  /// `pruning` with each of the schedules.
  std::vector<PruningOptions> prunings() const {
    std::vector<PruningOptions> all(std::max<std::size_t>(1, schedules.size()), pruning);
    for (std::size_t i = 0; i < schedules.size(); ++i) all[i].schedule = schedules[i];
    return all;
  }
};

}  // namespace llama
