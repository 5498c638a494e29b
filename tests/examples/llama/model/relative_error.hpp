#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace llama::test {

/// Largest difference from `expected` over the largest of these and of others, `largest`; infinite if a number is not
/// finite.
inline float relative_error(std::span<const float> found, std::span<const float> expected, float largest = 0) {
  float difference = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(found[i])) return std::numeric_limits<float>::infinity();
    largest = std::max(largest, std::abs(expected[i]));
    difference = std::max(difference, std::abs(found[i] - expected[i]));
  }
  return difference / largest;
}

}  // namespace llama::test
