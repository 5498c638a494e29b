#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "examples/llama/generate/run.hpp"

namespace llama {

/// How pruned runs compare with dense ones.
struct Comparison {
  Run lazy;             ///< the first lazy run, its times the medians of the timed ones
  std::string figures;  ///< lines for a reader
};

/// Compares the runs and adds the figures to `report`. There is one run of each at least, and as many of each. If there
/// are more, the times of the first ones do not count.
Comparison compare(std::vector<Run> dense, std::vector<Run> lazy, nlohmann::ordered_json& report);

}  // namespace llama
