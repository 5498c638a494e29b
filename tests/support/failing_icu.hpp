#pragma once

#include <doctest/doctest.h>
#include <unicode/uclean.h>

#include <cstddef>
#include <cstdlib>

namespace lazyllm::test {

inline long icu_before_failure = -1;  ///< allocations of ICU before one fails; negative: none fails, or one has

/// Makes ICU's allocations obey `icu_before_failure` from now on.
inline void watch_icu() {
  static const auto is_failing = [] { return icu_before_failure >= 0 && icu_before_failure-- == 0; };
  UErrorCode status = U_ZERO_ERROR;
  u_setMemoryFunctions(
      nullptr, [](const void*, std::size_t bytes) { return is_failing() ? nullptr : std::malloc(bytes); },
      [](const void*, void* memory, std::size_t bytes) { return is_failing() ? nullptr : std::realloc(memory, bytes); },
      [](const void*, void* memory) { std::free(memory); }, &status);
  REQUIRE(U_SUCCESS(status));
}

}  // namespace lazyllm::test
