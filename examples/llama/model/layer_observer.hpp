#pragma once

#include <functional>
#include <span>

#include "examples/llama/tokenizer/tokenizer.hpp"
#include "lazyllm/core/layer_plan.hpp"

namespace lazyllm::llama {

/// Called before each layer runs, with its plan.
using LayerObserver = std::function<void(const LayerPlan&)>;

/// Tokens that a step takes for one sequence.
using Tokens = std::span<const TokenId>;

}  // namespace lazyllm::llama
