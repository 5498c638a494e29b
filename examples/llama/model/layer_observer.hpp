#pragma once

#include <functional>

#include "lazyllm/core/layer_plan.hpp"

namespace lazyllm::llama {

/// Called before each layer runs, with its plan.
using LayerObserver = std::function<void(const LayerPlan&)>;

}  // namespace lazyllm::llama
