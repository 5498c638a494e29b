#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lazyllm {

/// Count or offset of rows, keys, layers and bytes.
using Index = std::ptrdiff_t;

/// Absolute place of a token in its sequence, from 0. Never renumbered by pruning, so RoPE stays right.
using Position = std::int32_t;

/// Ascending positions, or offsets into such a list.
using Positions = std::span<const Position>;

}  // namespace lazyllm
