#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "lazyllm/backend/cuda/context.hpp"
#include "lazyllm/backend/cuda/launch.cuh"
#include "lazyllm/core/host_device.hpp"

namespace lazyllm::cuda {

namespace detail {

/// Copies word i % words of row i / words.
template <class Word>
struct CopyWord {
  const std::byte* source;
  std::byte* target;
  const Index* from;
  const Index* to;
  Index source_stride;  // bytes
  Index target_stride;
  std::uint32_t words;  // of a row

  LAZYLLM_HOST_DEVICE void operator()(std::uint32_t i) const {
    const std::uint32_t row = i / words;
    const std::uint32_t word = i % words;
    reinterpret_cast<Word*>(target + to[row] * target_stride)[word] =
        reinterpret_cast<const Word*>(source + from[row] * source_stride)[word];
  }
};

template <class Word>
void copy_words(Context& context, CopyWord<Word> copy, Index row_bytes, Index count) {
  const Index words = row_bytes / static_cast<Index>(sizeof(Word));
  const Index rows_at_once = UINT32_MAX / words;
  copy.words = static_cast<std::uint32_t>(words);
  for (; count > 0; count -= rows_at_once) {
    for_each(context, static_cast<std::uint32_t>(std::min(count, rows_at_once) * words), copy);
    copy.from += rows_at_once;
    copy.to += rows_at_once;
  }
}

}  // namespace detail

/// Enqueues copies of row `from[i]` of `source` to row `to[i]` of `target` for every i, both in memory that the device
/// can reach. Gather, scatter and merge are all this. The matrices must not overlap; no two `to` may be equal. The
/// lists are the host's and may be changed at once. Throws `cuda_error`.
template <class T>
void copy_rows(Context& context, Rows<const T> source, std::span<const Index> from, Rows<T> target,
               std::span<const Index> to) {
  if (from.empty()) return;
  const auto count = std::ssize(from);
  const auto list_bytes = from.size_bytes();
  std::byte* const lists = context.workspace(2 * static_cast<Index>(list_bytes));
  context.upload(lists, 2 * static_cast<Index>(list_bytes), [&](std::byte* host) {
    std::memcpy(host, from.data(), list_bytes);
    std::memcpy(host + list_bytes, to.data(), list_bytes);
  });
  constexpr auto size = static_cast<Index>(sizeof(T));
  const auto run = [&]<class Word>(Word) {
    detail::copy_words<Word>(
        context,
        {reinterpret_cast<const std::byte*>(source.data), reinterpret_cast<std::byte*>(target.data),
         reinterpret_cast<const Index*>(lists), reinterpret_cast<const Index*>(lists) + count, source.stride * size,
         target.stride * size, 0},
        source.width * size, count);
  };
  // The widest word that every row begins on and is made of.
  const std::uintptr_t places = reinterpret_cast<std::uintptr_t>(source.data) |
                                reinterpret_cast<std::uintptr_t>(target.data) |
                                static_cast<std::uintptr_t>((source.stride | target.stride | source.width) * size);
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
