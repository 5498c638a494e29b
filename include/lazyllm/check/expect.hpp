#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>

#include "lazyllm/engine/finite.hpp"

namespace lazyllm::detail {

template <class... Parts>
std::string in_words(const Parts&... parts) {
  std::ostringstream text;
  text.precision(9);
  (text << ... << parts);
  return text.str();
}

/// Ends a check that has failed.
template <class... Parts>
[[noreturn]] void disagree(const Parts&... parts) {
  throw std::runtime_error(in_words(parts...));
}

inline void expect_equal(std::span<const float> values, std::span<const float> expected, float tolerance,
                         const std::string& where) {
  if (values.size() != expected.size()) disagree(where, ": ", values.size(), " numbers, not ", expected.size());
  float highest = 0;
  for (const float value : expected) highest = std::max(highest, is_finite(value) ? std::abs(value) : 0);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool same = __builtin_bit_cast(std::uint32_t, values[i]) == __builtin_bit_cast(std::uint32_t, expected[i]);
    const bool near = is_finite(values[i]) && std::abs(values[i] - expected[i]) <= tolerance * highest;
    if (!same && !near) disagree(where, ": number ", i, " is ", values[i], ", not ", expected[i]);
  }
}

inline void expect_finite(std::span<const float> values, const std::string& where) {
  for (const float value : values) {
    if (!is_finite(value)) disagree(where, ": ", value);
  }
}

}  // namespace lazyllm::detail
