#pragma once

#include <cmath>
#include <cstdint>

#include "lazyllm/core/host_device.hpp"
#include "lazyllm/core/positions.hpp"

/// \file
/// What all backends share so that they keep the same tokens for the same scores.

namespace lazyllm::detail {

/// A number in [0, 1) that depends on the seed and the position only (the finaliser of splitmix64): the score of
/// `RandomDrop`, the same on every backend.
LAZYLLM_HOST_DEVICE constexpr float random_score(std::uint64_t seed, Position position) {
  std::uint64_t x = seed + 0x9e3779b97f4a7c15ULL * (static_cast<std::uint64_t>(position) + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<float>((x ^ (x >> 31)) >> 40) * 0x1p-24F;
}

/// Numbers in the order of the scores, which are not NaN; both zeros have the same.
LAZYLLM_HOST_DEVICE inline std::uint32_t sort_key(float score) {
  const auto bits = __builtin_bit_cast(std::uint32_t, score + 0.0F);
  return bits >> 31 ? ~bits : bits | 0x80000000U;
}

/// The score of a sort key.
LAZYLLM_HOST_DEVICE inline float score_of(std::uint32_t key) {
  return __builtin_bit_cast(float, key >> 31 ? key & 0x7fffffffU : ~key);
}

LAZYLLM_HOST_DEVICE inline bool is_finite(float score) {
  return (__builtin_bit_cast(std::uint32_t, score) & 0x7f800000U) != 0x7f800000U;
}

/// Scores as whole numbers of a unit so small that nothing of weight is lost: their sums are the same in any order.
class ScoreUnits {
 public:
  /// For sums of up to `count` finite scores whose magnitudes are at most `highest`.
  LAZYLLM_HOST_DEVICE ScoreUnits(float highest, Index count) {
    // highest < 2^exponent, and the sums must stay below 2^62.
    const auto biased = static_cast<int>(__builtin_bit_cast(std::uint32_t, highest) >> 23 & 0xff);
    const int exponent = (biased > 0 ? biased : 1) - 126;
    int count_bits = 0;
    while (Index{1} << count_bits < count) ++count_bits;
    per_score_ = std::ldexp(1.0, 62 - exponent - count_bits);
  }

  /// None for a negative score.
  LAZYLLM_HOST_DEVICE std::int64_t of(float score) const {
    return score > 0 ? static_cast<std::int64_t>(static_cast<double>(score) * per_score_) : 0;
  }

  /// The least sum that is the share `mass` of `total`, but for roundings: 1e-9 of the total may be missing.
  LAZYLLM_HOST_DEVICE static std::int64_t share(double mass, std::int64_t total) {
    const double wanted = std::ceil((mass - 1e-9) * static_cast<double>(total));
    return wanted > 0 ? static_cast<std::int64_t>(wanted) : 0;
  }

 private:
  double per_score_;  // units in a score of 1; a power of two
};

}  // namespace lazyllm::detail
