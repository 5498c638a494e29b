#pragma once

#include <cmath>
#include <cstdint>

#include "lazyllm/engine/finite.hpp"
#include "lazyllm/engine/host_device.hpp"
#include "lazyllm/engine/positions.hpp"

/// \file
/// What all backends share so that they keep the same tokens for the same scores. All tests of numbers go by their
/// bits, so that options such as -ffast-math or -ftz=true change nothing.

namespace lazyllm::detail {

/// Numbers in the order of the scores, which are not NaN; both zeros have the same.
LAZYLLM_HOST_DEVICE inline std::uint32_t sort_key(float score) {
  const auto bits = __builtin_bit_cast(std::uint32_t, score);
  if (bits << 1 == 0) return 0x80000000U;  // not by adding 0: that may flush a denormal to 0
  return bits >> 31 ? ~bits : bits | 0x80000000U;
}

/// The score of a sort key.
LAZYLLM_HOST_DEVICE inline float score_of(std::uint32_t key) {
  return __builtin_bit_cast(float, key >> 31 ? key & 0x7fffffffU : ~key);
}

/// The higher of two scores that are not negative; one that is not finite wins, so that it is not lost.
LAZYLLM_HOST_DEVICE inline float higher(float a, float b) {
  const auto a_bits = __builtin_bit_cast(std::uint32_t, a);
  const auto b_bits = __builtin_bit_cast(std::uint32_t, b);
  return __builtin_bit_cast(float, a_bits < b_bits ? b_bits : a_bits);
}

/// The highest of the finite scores [first, last), at least `score`, which stays what it is if it is not finite.
LAZYLLM_HOST_DEVICE inline float highest_around(float score, const float* first, const float* last) {
  if (!is_finite(score)) return score;
  std::uint32_t highest = sort_key(score);
  for (; first < last; ++first) {
    const std::uint32_t key = is_finite(*first) ? sort_key(*first) : 0;
    highest = key > highest ? key : highest;
  }
  return score_of(highest);
}

/// Scores as whole numbers of a unit so small that nothing of weight is lost: their sums are the same in any order. The
/// unit is a power of two.
class ScoreUnits {
 public:
  /// For sums of up to `count` finite scores whose magnitudes are at most `highest`.
  LAZYLLM_HOST_DEVICE ScoreUnits(float highest, Index count) {
    int count_bits = 0;
    while (Index{1} << count_bits < count) ++count_bits;
    // The highest score has 24 bits at most, and the sums must stay below 2^62.
    shift_ = 62 - 24 - count_bits - exponent(__builtin_bit_cast(std::uint32_t, highest));
  }

  /// 0 for a negative score.
  LAZYLLM_HOST_DEVICE std::int64_t of(float score) const {
    const auto bits = __builtin_bit_cast(std::uint32_t, score);
    if (bits >> 31) return 0;
    const auto mantissa = static_cast<std::int64_t>((bits & 0x7fffffU) | (bits >> 23 == 0 ? 0 : 0x800000U));
    const int shift = exponent(bits) + shift_;
    return shift >= 0 ? mantissa << shift : mantissa >> (shift > -63 ? -shift : 63);
  }

  /// The least sum that is the share `p` of `total`, but for roundings: 1e-9 of the total may be missing.
  LAZYLLM_HOST_DEVICE static std::int64_t share(double p, std::int64_t total) {
    const double wanted = std::ceil((p - 1e-9) * static_cast<double>(total));
    return wanted > 0 ? static_cast<std::int64_t>(wanted) : 0;
  }

 private:
  /// Of the mantissa as a whole number, but for a constant. Denormal numbers have that of the smallest normal ones.
  LAZYLLM_HOST_DEVICE static int exponent(std::uint32_t bits) {
    const auto biased = static_cast<int>(bits >> 23 & 0xffU);
    return biased > 0 ? biased : 1;
  }

  int shift_;
};

}  // namespace lazyllm::detail
