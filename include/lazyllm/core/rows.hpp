#pragma once

#include <type_traits>

#include "lazyllm/core/host_device.hpp"
#include "lazyllm/core/positions.hpp"

namespace lazyllm {

/// Non-owning view of a row-major matrix `[rows x width]`, host or device memory. Trivially copyable.
template <class T>
struct Rows {
  T* data = nullptr;
  Index rows = 0;
  Index width = 0;
  Index stride = 0;  ///< elements from one row to the next, >= width

  constexpr Rows() = default;
  LAZYLLM_HOST_DEVICE constexpr Rows(T* data_, Index rows_, Index width_) : Rows(data_, rows_, width_, width_) {}
  LAZYLLM_HOST_DEVICE constexpr Rows(T* data_, Index rows_, Index width_, Index stride_)
      : data(data_), rows(rows_), width(width_), stride(stride_) {}

  /// Rows that can be written are rows that can be read.
  template <class U>
  requires std::is_same_v<const U, T> LAZYLLM_HOST_DEVICE constexpr Rows(const Rows<U>& other)
      : Rows(other.data, other.rows, other.width, other.stride) {}

  /// Pointer to row `i`.
  LAZYLLM_HOST_DEVICE constexpr T* row(Index i) const { return data + i * stride; }

  /// The rows `[first, first + count)`.
  LAZYLLM_HOST_DEVICE constexpr Rows subrows(Index first, Index count) const {
    return {row(first), count, width, stride};
  }
};

}  // namespace lazyllm
