#pragma once

#include <cuda_runtime_api.h>
#include <thrust/for_each.h>
#include <thrust/iterator/counting_iterator.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "lazyllm/backend/cuda/context.hpp"
#include "lazyllm/backend/cuda/launch.cuh"
#include "lazyllm/backend/cuda/layout.hpp"
#include "lazyllm/backend/operations.hpp"
#include "lazyllm/engine/host_device.hpp"

namespace lazyllm::cuda {

namespace detail {

/// Where one row is copied from and to.
struct RowPlaces {
  const std::byte* source;
  std::byte* target;
};

/// The places of rows in a list of the device.
struct ListedRows {
  const RowPlaces* rows;

  LAZYLLM_HOST_DEVICE RowPlaces operator()(Index row) const { return rows[row]; }
};

/// Copies word i % words of row i / words, counted from a first row.
template <class Word, class PlacesOf>
struct CopyWord {
  PlacesOf places_of;
  Index first;
  Index words;  // of a row; fits 32 bits

  LAZYLLM_HOST_DEVICE void operator()(std::uint32_t i) const {
    const auto of_row = static_cast<std::uint32_t>(words);
    const RowPlaces row = places_of(first + i / of_row);
    const std::uint32_t word = i % of_row;
    reinterpret_cast<Word*>(row.target)[word] = reinterpret_cast<const Word*>(row.source)[word];
  }
};

template <class Word, class PlacesOf>
void copy_words(Context& context, const PlacesOf& places_of, Index count, Index row_bytes) {
  const Index words = row_bytes / static_cast<Index>(sizeof(Word));
  const Index max_rows = UINT32_MAX / words;  // of a launch, so that 32 bits number their words
  for (Index first = 0; first < count; first += max_rows) {
    const Index all_words = std::min(count - first, max_rows) * words;
    const CopyWord<Word, PlacesOf> copy{places_of, first, words};
    thrust_call(context, all_words, [=](const auto& policy) {
      thrust::for_each_n(policy, thrust::counting_iterator<std::uint32_t>(0), static_cast<std::uint32_t>(all_words),
                         copy);
    });
  }
}

/// The address and the strides in bytes of a matrix, whose low bits are 0 where those of all its rows are.
template <class T>
std::uintptr_t alignment_bits(RowsView<T> rows) {
  constexpr auto size = static_cast<Index>(sizeof(T));
  return reinterpret_cast<std::uintptr_t>(rows.data) | static_cast<std::uintptr_t>((rows.stride | rows.width) * size);
}

/// Enqueues copies of the rows that `places_of(0 … count - 1)` says, in the widest words that `bits` allows.
template <class PlacesOf>
void copy_aligned(Context& context, std::uintptr_t bits, const PlacesOf& places_of, Index count, Index row_bytes) {
  const auto copy_as = [&]<class Word>(Word) { copy_words<Word>(context, places_of, count, row_bytes); };
  if (bits % sizeof(uint4) == 0) {
    copy_as(uint4{});
  } else if (bits % sizeof(std::uint32_t) == 0) {
    copy_as(std::uint32_t{});
  } else if (bits % sizeof(std::uint16_t) == 0) {
    copy_as(std::uint16_t{});
  } else {
    copy_as(std::uint8_t{});
  }
}

/// Enqueues the copy of `rows` rows of `row_bytes` bytes between matrices with these strides in bytes.
inline void copy_matrix(Context& context, void* target, Index target_stride, const void* source, Index source_stride,
                        Index row_bytes, Index rows) {
  if (target_stride == row_bytes && source_stride == row_bytes) {  // one long row, which is faster
    check(cudaMemcpyAsync(target, source, static_cast<std::size_t>(rows * row_bytes), cudaMemcpyDefault,
                          context.stream()),
          "cudaMemcpyAsync");
  } else {
    check(cudaMemcpy2DAsync(target, static_cast<std::size_t>(target_stride), source,
                            static_cast<std::size_t>(source_stride), static_cast<std::size_t>(row_bytes),
                            static_cast<std::size_t>(rows), cudaMemcpyDefault, context.stream()),
          "cudaMemcpy2DAsync");
  }
}

/// The same elements as rows of one element where no gaps are between the rows, so that a long row is cut, too.
template <class T>
RowsView<T> as_short_rows(RowsView<T> rows) {
  return rows.rows == 1 || rows.stride == rows.width ? RowsView<T>(rows.data, rows.rows * rows.width, 1) : rows;
}

/// Calls `copy(first, count)` for pieces of `rows` rows that have a MiB, or one row that is longer: so much pinned
/// memory a piece takes.
template <class Copy>
void for_pieces(Index rows, Index row_bytes, const Copy& copy) {
  constexpr Index piece_bytes = Index{1} << 20;
  const Index piece = std::max<Index>(1, piece_bytes / std::max<Index>(1, row_bytes));
  for (Index first = 0; first < rows; first += piece) copy(first, std::min(piece, rows - first));
}

}  // namespace detail

/// Enqueues all `copies` in one launch, between matrices of one width in memory that the device can reach, in the
/// widest words that all rows begin on and are made of. The lists are the host's and may be changed when it returns.
/// Throws `cuda_error`.
template <class T>
void copy_rows(Context& context, std::span<const RowCopy<T>> copies) {
  Index count = 0;
  Index width = 0;
  std::uintptr_t bits = 0;
  for (const RowCopy<T>& copy : copies) {
    if (copy.from.empty()) continue;
    count += std::ssize(copy.from);
    width = copy.source.width;
    bits |= detail::alignment_bits(copy.source) | detail::alignment_bits(copy.target);
  }
  if (count == 0) return;
  const Index bytes = count * static_cast<Index>(sizeof(detail::RowPlaces));
  std::byte* const lists = context.workspace(bytes);
  context.upload(lists, bytes, [&](std::byte* host) {
    auto* row = detail::at<detail::RowPlaces>(host, 0);
    for (const RowCopy<T>& copy : copies) {
      for (std::size_t i = 0; i < copy.from.size(); ++i) {
        *row++ = {reinterpret_cast<const std::byte*>(copy.source.row(copy.from[i])),
                  reinterpret_cast<std::byte*>(copy.target.row(copy.to[i]))};
      }
    }
  });
  detail::copy_aligned(context, bits, detail::ListedRows{detail::at<const detail::RowPlaces>(lists, 0)}, count,
                       width * static_cast<Index>(sizeof(T)));
}

/// Copies `rows` on the device to `target` `[rows x width]` in any host memory, without gaps, and waits for the stream.
/// Throws `cuda_error`.
template <class T>
void copy_to_host(Context& context, RowsView<const T> rows, T* target) {
  constexpr auto size = static_cast<Index>(sizeof(T));
  rows = detail::as_short_rows(rows);
  const Index row_bytes = rows.width * size;
  detail::for_pieces(rows.rows, row_bytes, [&](Index first, Index count) {
    const std::byte* const host = context.fetch(count * row_bytes, [&](std::byte* pinned) {
      detail::copy_matrix(context, pinned, row_bytes, rows.row(first), rows.stride * size, row_bytes, count);
    });
    std::memcpy(static_cast<void*>(target + first * rows.width), host, static_cast<std::size_t>(count * row_bytes));
  });
}

/// Enqueues the copy of `source` `[rows x width]` in any host memory, without gaps, to `rows` on the device. `source`
/// may be changed when it returns. Throws `cuda_error`.
template <class T>
void copy_from_host(Context& context, const T* source, RowsView<T> rows) {
  constexpr auto size = static_cast<Index>(sizeof(T));
  rows = detail::as_short_rows(rows);
  const Index row_bytes = rows.width * size;
  detail::for_pieces(rows.rows, row_bytes, [&](Index first, Index count) {
    const auto bytes = static_cast<std::size_t>(count * row_bytes);
    context.stage(
        count * row_bytes, [&](std::byte* host) { std::memcpy(host, source + first * rows.width, bytes); },
        [&](const std::byte* host) {
          detail::copy_matrix(context, rows.row(first), rows.stride * size, host, row_bytes, row_bytes, count);
        });
  });
}

}  // namespace lazyllm::cuda
