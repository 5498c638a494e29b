#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lazyllm/backend/cuda/context.hpp"
#include "lazyllm/backend/cuda/launch.cuh"
#include "lazyllm/core/host_device.hpp"

namespace lazyllm::cuda {

namespace detail {

/// Where one row is copied from and to.
struct RowPlaces {
  const std::byte* source;
  std::byte* target;
};

/// Copies word i % words of row i / words.
template <class Word>
struct CopyWord {
  const RowPlaces* rows;
  std::uint32_t words;  // of a row

  LAZYLLM_HOST_DEVICE void operator()(std::uint32_t i) const {
    const RowPlaces row = rows[i / words];
    const std::uint32_t word = i % words;
    reinterpret_cast<Word*>(row.target)[word] = reinterpret_cast<const Word*>(row.source)[word];
  }
};

template <class Word>
void copy_words(Context& context, const RowPlaces* rows, Index count, Index row_bytes) {
  const Index words = row_bytes / static_cast<Index>(sizeof(Word));
  const Index rows_at_once = UINT32_MAX / words;
  for (; count > 0; count -= rows_at_once, rows += rows_at_once) {
    for_each(context, static_cast<std::uint32_t>(std::min(count, rows_at_once) * words),
             CopyWord<Word>{rows, static_cast<std::uint32_t>(words)});
  }
}

}  // namespace detail

/// Enqueues all `copies` at once, between matrices of one width in memory that the device can reach, in the widest
/// words that all rows begin on and are made of. The lists are the host's and may be changed at once. Throws
/// `cuda_error`.
template <class T>
void copy_rows(Context& context, std::span<const RowCopy<T>> copies) {
  constexpr auto size = static_cast<Index>(sizeof(T));
  Index count = 0;
  Index width = 0;
  std::uintptr_t places = 0;
  for (const RowCopy<T>& copy : copies) {
    if (copy.from.empty()) continue;
    count += std::ssize(copy.from);
    width = copy.source.width;
    places |= reinterpret_cast<std::uintptr_t>(copy.source.data) | reinterpret_cast<std::uintptr_t>(copy.target.data) |
              static_cast<std::uintptr_t>((copy.source.stride | copy.target.stride | width) * size);
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
  const auto run = [&]<class Word>(Word) {
    detail::copy_words<Word>(context, detail::at<const detail::RowPlaces>(lists, 0), count, width * size);
  };
  if (places % sizeof(uint4) == 0) {
    run(uint4{});
  } else if (places % sizeof(std::uint32_t) == 0) {
    run(std::uint32_t{});
  } else if (places % sizeof(std::uint16_t) == 0) {
    run(std::uint16_t{});
  } else {
    run(std::uint8_t{});
  }
}

}  // namespace lazyllm::cuda
