#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>

#include "examples/llama/base.hpp"

/// \file
/// Memory that decode steps read from end to end: weights, K and V. Where transparent_hugepage is at `madvise`, Linux
/// gives pages of 2 MiB only to memory that asks for them. At the end of each page of 4 KiB a processor loses time, as
/// it has to look up the next one.
namespace llama {

/// `bytes` of uninitialised memory on a multiple of 64 bytes. Smaller pieces share pages, which go with the last of
/// them. Throws `std::bad_alloc`.
std::shared_ptr<std::byte> large_page_memory(std::size_t bytes);

/// Room for `count` values of T, uninitialised. Throws `std::bad_alloc`.
template <class T>
std::shared_ptr<T> large_page_array(Index count) {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);
  constexpr Index most_bytes = std::numeric_limits<Index>::max() / 2;
  if (count > most_bytes / static_cast<Index>(sizeof(T))) throw std::bad_alloc();
  const std::shared_ptr<std::byte> memory = large_page_memory(static_cast<std::size_t>(count) * sizeof(T));
  return {memory, reinterpret_cast<T*>(memory.get())};
}

}  // namespace llama
