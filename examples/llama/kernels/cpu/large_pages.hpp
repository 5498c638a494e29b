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

/// Whose pages a piece of memory has. Pieces of a page and more always have pages of their own.
enum class Pages {
  own,       ///< a smaller piece has ordinary memory
  together,  ///< smaller pieces share blocks of 32 MiB, which go with the last of them: for weights, which go at once
};

/// Whether Linux is asked for large pages. Not under the address sanitizer, which sees the ends of ordinary memory.
#ifdef __has_feature
#define LLAMA_HAS_FEATURE(feature) __has_feature(feature)
#else
#define LLAMA_HAS_FEATURE(feature) 0
#endif
#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && !LLAMA_HAS_FEATURE(address_sanitizer)
inline constexpr bool large_pages = true;
#else
inline constexpr bool large_pages = false;
#endif

/// `bytes` of uninitialised memory on a multiple of 64 bytes. Throws `std::bad_alloc`.
std::shared_ptr<std::byte> large_page_memory(std::size_t bytes, Pages pages);

/// Room for `count` values of T, uninitialised. Throws `std::bad_alloc`.
template <class T>
std::shared_ptr<T> large_page_array(Index count, Pages pages) {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);
  constexpr Index most_bytes = std::numeric_limits<Index>::max() / 2;
  if (count < 0 || count > most_bytes / static_cast<Index>(sizeof(T))) throw std::bad_alloc();
  const std::shared_ptr<std::byte> memory = large_page_memory(static_cast<std::size_t>(count) * sizeof(T), pages);
  return {memory, reinterpret_cast<T*>(memory.get())};
}

}  // namespace llama
