#pragma once

#include <string_view>

#include "lazyllm/policy/selection.hpp"

namespace lazyllm::llama {

/// Reads the program option `--schedule` for a model of `layers` layers: `dense`, `paper`, `LAYER:KEEP,…`, or one of
/// `mass@`, `static@` and `random=SEED@` in front of `LAYER:KEEP,…`.
/// Throws `lazyllm::invalid_argument` on anything else, and for layers that the model does not have.
AnyPolicy parse_policy(std::string_view text, Index layers);

}  // namespace lazyllm::llama
