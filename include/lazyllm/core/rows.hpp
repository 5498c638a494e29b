#pragma once

#include <type_traits>

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
  constexpr Rows(T* data_, Index rows_, Index width_) : Rows(data_, rows_, width_, width_) {}
  constexpr Rows(T* data_, Index rows_, Index width_, Index stride_)
      : data(data_), rows(rows_), width(width_), stride(stride_) {}

  /// Pointer to row `i`.
  constexpr T* row(Index i) const { return data + i * stride; }

  /// The rows `[first, first + count)`.
  constexpr Rows subrows(Index first, Index count) const { return {row(first), count, width, stride}; }

  constexpr operator Rows<const T>() const requires(!std::is_const_v<T>) { return {data, rows, width, stride}; }
};

}  // namespace lazyllm
