#pragma once

#include <cstdint>
#include <type_traits>

#include "lazyllm/engine/host_device.hpp"

namespace lazyllm {

/// What Q and K may be made of: `float` or a 16-bit floating-point type that converts to it, such as `Eigen::half`,
/// `Eigen::bfloat16`, `__half`, `__nv_bfloat16` or `Float16` and `BFloat16` below. Integers are refused: a `uint16_t`
/// that holds the bits of a half would be read as a number.
template <class T>
concept Element = !std::is_integral_v<T> && !std::is_enum_v<T> && std::is_trivially_copyable_v<T> &&
                  (std::is_same_v<T, float> || sizeof(T) == 2) && requires(const T& value) {
  static_cast<float>(value);
};

/// An IEEE half by its bits, for engines that store `uint16_t`: `reinterpret_cast<const lazyllm::Float16*>(data)`.
struct Float16 {
  std::uint16_t bits;  ///< as in memory

  /// The value, exactly.
  LAZYLLM_HOST_DEVICE constexpr explicit operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
    const std::uint32_t exponent = bits >> 10 & 0x1fU;
    const std::uint32_t mantissa = bits & 0x3ffU;
    if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
      const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
      return sign != 0 ? -magnitude : magnitude;
    }
    const std::uint32_t biased = exponent == 0x1fU ? 0xffU : exponent + 112;
    return __builtin_bit_cast(float, sign | biased << 23 | mantissa << 13);
  }
};

/// A bfloat16 by its bits: the upper half of a float.
struct BFloat16 {
  std::uint16_t bits;  ///< as in memory

  /// The value, exactly.
  LAZYLLM_HOST_DEVICE constexpr explicit operator float() const {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
  }
};

}  // namespace lazyllm
