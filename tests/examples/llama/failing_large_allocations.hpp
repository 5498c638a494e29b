#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>
#include <string>

#include "examples/llama/files/file_error.hpp"

// Replaces operator new, so only one file of a program may include this. Not inline, for gcc warns of a free of what it
// sees come from a new.

namespace llama::test {

inline std::size_t large_bytes = std::numeric_limits<std::size_t>::max();
inline long large_before_failure = 0;  // negative: one has failed

/// Calls `read` with its first, second, ... allocation of at least `bytes` failing, until it makes no more. Each call
/// must end in the memory error or give something whole, which `read` checks.
template <class Read>
void check_nothing_is_lost(std::size_t bytes, const Read& read) {
  bool whole = false;
  for (long n = 0;; ++n) {
    CAPTURE(n);
    large_before_failure = n;
    large_bytes = bytes;
    try {
      read();
      whole = true;
    } catch (const std::bad_alloc&) {
    } catch (const file_error& error) {
      CHECK(std::string(error.what()).find("not enough memory") != std::string::npos);
    }
    large_bytes = std::numeric_limits<std::size_t>::max();
    if (large_before_failure >= 0) break;
  }
  CHECK(whole);
}

}  // namespace llama::test

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  const bool fails = bytes >= llama::test::large_bytes && llama::test::large_before_failure-- == 0;
  void* memory = fails ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
