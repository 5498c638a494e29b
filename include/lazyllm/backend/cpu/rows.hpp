#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <span>
#include <type_traits>

#include "lazyllm/backend/cpu/context.hpp"
#include "lazyllm/backend/operations.hpp"

namespace lazyllm::cpu {

/// `rows` as an Eigen matrix `[rows x width]` with its stride, to read or, if T is not const, to write.
template <class T>
auto as_matrix(RowsView<T> rows) {
  using Matrix = Eigen::Matrix<std::remove_const_t<T>, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Qualified = std::conditional_t<std::is_const_v<T>, const Matrix, Matrix>;
  return Eigen::Map<Qualified, 0, Eigen::OuterStride<>>(rows.data, rows.rows, rows.width,
                                                        Eigen::OuterStride<>(rows.stride));
}

/// Does all `copies`.
template <class T>
void copy_rows(Context& context, std::span<const RowCopy<T>> copies) {
  for (const RowCopy<T>& copy : copies) {
    if (copy.from.empty()) continue;  // a matrix without rows may have no width
    const Index width = copy.source.width;
    // Below about 64 KiB a second thread costs more than it copies.
    const Index grain = std::max<Index>(1, 65536 / (width * static_cast<Index>(sizeof(T))));
    context.for_chunks(std::ssize(copy.from), grain, [&](Index first, Index last) {
      for (auto i = lazyllm::detail::to_size(first); i < lazyllm::detail::to_size(last); ++i) {
        std::copy_n(copy.source.row(copy.from[i]), width, copy.target.row(copy.to[i]));
      }
    });
  }
}

/// Copies `rows` to `target` `[rows x width]`, without gaps.
template <class T>
void copy_to_host(Context&, RowsView<const T> rows, T* target) {
  for (Index r = 0; r < rows.rows; ++r) std::copy_n(rows.row(r), rows.width, target + r * rows.width);
}

/// Copies `source` `[rows x width]`, without gaps, to `rows`.
template <class T>
void copy_from_host(Context&, const T* source, RowsView<T> rows) {
  for (Index r = 0; r < rows.rows; ++r) std::copy_n(source + r * rows.width, rows.width, rows.row(r));
}

}  // namespace lazyllm::cpu
