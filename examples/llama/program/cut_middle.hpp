#pragma once

#include <vector>

#include "examples/llama/base.hpp"
#include "examples/llama/token_ids.hpp"

namespace llama {

/// The tokens themselves if there are at most `longest`; else the first and the last `longest / 2` of them, as
/// LongBench does. Throws `std::invalid_argument` if `longest` is below 2.
std::vector<TokenId> cut_middle(std::vector<TokenId> tokens, Index longest);

}  // namespace llama
