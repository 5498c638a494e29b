#pragma once

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>

// Replaces operator new, so only one file of a program may include this. Not inline, for gcc warns of a free of what it
// sees come from a new.

namespace lazyllm::test {

inline std::size_t large_bytes = std::numeric_limits<std::size_t>::max();
inline long large_before_failure = 0;  // negative: one has failed

/// Calls `action(n)` for n = 0, 1, ... with the (n + 1)-th allocation of at least `bytes` failing, until one call makes
/// no more than n.
template <class Action>
void with_each_large_allocation_failing(std::size_t bytes, const Action& action) {
  for (long n = 0;; ++n) {
    large_before_failure = n;
    large_bytes = bytes;
    action(n);
    large_bytes = std::numeric_limits<std::size_t>::max();
    if (large_before_failure >= 0) return;
  }
}

}  // namespace lazyllm::test

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  const bool fails = bytes >= lazyllm::test::large_bytes && lazyllm::test::large_before_failure-- == 0;
  void* memory = fails ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
