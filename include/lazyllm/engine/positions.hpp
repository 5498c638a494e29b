#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace lazyllm {

/// Count or offset of rows, keys, layers and bytes.
using Index = std::ptrdiff_t;

/// Absolute place of a token in its sequence, from 0. Pruning never renumbers it, so RoPE stays right.
using Position = std::int32_t;

/// Ascending positions.
using Positions = std::span<const Position>;

/// Number of layers that hold a token's K/V: 0 before the token has run at all, all layers once it needs no more work.
using Depth = std::int32_t;

/// Whether ascending `positions` are 0, 1, …: then a kernel needs no list of them, and their K/V no gathering.
inline bool is_prefix(Positions positions) {
  return positions.empty() || positions.back() + 1 == static_cast<Position>(positions.size());
}

namespace detail {

/// The most tokens of a sequence: positions end there.
inline constexpr Index most_tokens = std::numeric_limits<Position>::max();

/// Layers of a model at most. More come from a mistake, or from damaged bytes, and would ask for much memory.
inline constexpr Index max_layers = 65535;

/// An index as the standard library counts.
template <class Number>
constexpr std::size_t to_size(Number number) {
  return static_cast<std::size_t>(number);
}

}  // namespace detail
}  // namespace lazyllm
