#pragma once

#include <functional>

#include "examples/llama/library.hpp"

namespace llama {

/// Called before each layer runs, with its plan.
using LayerObserver = std::function<void(const lazyllm::LayerPlan&)>;

}  // namespace llama
