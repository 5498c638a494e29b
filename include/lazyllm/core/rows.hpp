#pragma once

#include <span>
#include <type_traits>

#include "lazyllm/core/host_device.hpp"
#include "lazyllm/core/positions.hpp"

namespace lazyllm {

/// Non-owning view of a row-major matrix `[rows x width]`, host or device memory. Trivially copyable.
template <class T>
struct RowsView {
  T* data = nullptr;
  Index rows = 0;
  Index width = 0;
  Index stride = 0;  ///< elements from one row to the next, >= width

  constexpr RowsView() = default;
  LAZYLLM_HOST_DEVICE constexpr RowsView(T* data_, Index rows_, Index width_)
      : RowsView(data_, rows_, width_, width_) {}
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

/// What a backend's `copy_rows` does for one pair of matrices: copies row `from[i]` of `source` to row `to[i]` of
/// `target` for every i. Gather, scatter and merge are all this. The copies of one call happen in any order: no row
/// that is written may be read or written by another.
template <class T>
struct RowCopy {
  RowsView<const T> source;
  std::span<const Index> from;
  RowsView<T> target;
  std::span<const Index> to;
};

/// The same for one pair of matrices on any backend.
template <class T, class Context>
void copy_rows(Context& context, RowsView<const T> source, std::span<const Index> from, RowsView<T> target,
               std::span<const Index> to) {
  const RowCopy<T> copy{source, from, target, to};
  copy_rows(context, std::span<const RowCopy<T>>(&copy, 1));
}

}  // namespace lazyllm
