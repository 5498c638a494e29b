#pragma once

#include <cstdint>

#include "lazyllm/engine/host_device.hpp"

/// \file
/// Tests of numbers by their bits: a compiler may take it that there are no others than finite ones (-ffast-math).

namespace lazyllm::detail {

/// Whether the number is neither infinite nor NaN.
LAZYLLM_HOST_DEVICE inline bool is_finite(float number) {
  return (__builtin_bit_cast(std::uint32_t, number) & 0x7f800000U) != 0x7f800000U;
}
LAZYLLM_HOST_DEVICE inline bool is_finite(double number) {
  constexpr std::uint64_t exponent = std::uint64_t{0x7ff} << 52;
  return (__builtin_bit_cast(std::uint64_t, number) & exponent) != exponent;
}

}  // namespace lazyllm::detail
