#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "examples/llama/library.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

namespace llama {

/// `[tokens so far]`: in how many layers of one step each token was active. The active sets of a step only shrink with
/// depth, so that this says which tokens were active in which layer: those whose number is above the layer's.
using ActiveLayers = std::vector<lazyllm::Depth>;

/// Notes a layer of a running step of one sequence in `active`, which starts empty for each step.
void record(const lazyllm::LayerPlan& plan, ActiveLayers& active);

/// What happened in one run, for a reader.
struct Report {
  Tokens tokens;                         ///< the prompt's, then the answer's: one for each step
  const Tokenizer* tokenizer = nullptr;  ///< without one, the page shows the numbers of the tokens
  Index layers = 0;
  std::span<const ActiveLayers> steps;  ///< the prefill, then each decode step
};

/// One HTML page that needs nothing else: the prompt's tokens coloured by depth, step by step, with charts of the work
/// per layer, and `figures`, what --json writes. The texts of prompt and answer cannot become markup or script.
/// Throws `std::invalid_argument` if the steps do not fit the tokens.
std::string report_page(const Report& report, const nlohmann::ordered_json& figures);

}  // namespace llama
