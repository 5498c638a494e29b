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

/// Whether ascending `positions` are 0, 1, …: then a kernel needs no list of them, and their K/V no gathering.
inline bool is_prefix(Positions positions) {
  return positions.empty() || positions.back() + 1 == static_cast<Position>(positions.size());
}

}  // namespace lazyllm
