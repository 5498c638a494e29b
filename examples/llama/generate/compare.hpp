#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "examples/llama/generate/run.hpp"

namespace llama {

/// Prints how the pruned runs compare with the dense ones and adds the figures to `report`. There is one run of each at
/// least, and as many of each. Returns the first lazy run, its times the medians of all.
Run compare(std::vector<Run> dense, std::vector<Run> lazy, nlohmann::ordered_json& report);

}  // namespace llama
