#pragma once

#include <cstdint>
#include <span>

namespace llama {

/// Number of a vocabulary entry, from 0.
using TokenId = std::int32_t;

/// Tokens of one text, or those that a step takes for one sequence.
using Tokens = std::span<const TokenId>;

}  // namespace llama
