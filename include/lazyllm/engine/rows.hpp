#pragma once

#include <type_traits>

#include "lazyllm/engine/host_device.hpp"
#include "lazyllm/engine/positions.hpp"

namespace lazyllm {

/// Non-owning view of a row-major matrix `[rows x width]` in host or device memory. Trivially copyable.
template <class T>
struct RowsView {
  T* data = nullptr;  ///< row 0
  Index rows = 0;     ///< number of rows
  Index width = 0;    ///< elements of a row
  Index stride = 0;   ///< elements from one row to the next, >= width

  constexpr RowsView() = default;  ///< no rows
  /// A matrix without gaps between its rows.
  LAZYLLM_HOST_DEVICE constexpr RowsView(T* data_, Index rows_, Index width_)
      : RowsView(data_, rows_, width_, width_) {}
  /// A matrix whose rows begin `stride_` elements apart.
  LAZYLLM_HOST_DEVICE constexpr RowsView(T* data_, Index rows_, Index width_, Index stride_)
      : data(data_), rows(rows_), width(width_), stride(stride_) {}

  /// Rows that can be written are rows that can be read.
  template <class U>
  requires std::is_same_v<const U, T> LAZYLLM_HOST_DEVICE constexpr RowsView(const RowsView<U>& other)
      : RowsView(other.data, other.rows, other.width, other.stride) {}

  /// Pointer to row `i`.
  LAZYLLM_HOST_DEVICE constexpr T* row(Index i) const { return data + i * stride; }

  /// The rows `[first, first + count)`.
  LAZYLLM_HOST_DEVICE constexpr RowsView subrows(Index first, Index count) const {
    return {row(first), count, width, stride};
  }
};

}  // namespace lazyllm
