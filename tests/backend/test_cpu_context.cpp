#include <doctest/doctest.h>

#include <new>
#include <span>

#include "lazyllm/backend/cpu/context.hpp"

using namespace lazyllm;

TEST_CASE("cpu context: scratch memory that cannot grow stays what it was") {
  cpu::Context context;
  const std::span<float> before = context.scratch(100);
  CHECK_THROWS_AS(context.scratch(Index{1} << 60), std::bad_alloc);
  // Freed memory would be handed out again: to an array of the same size first of all.
  cpu::Context other;
  const std::span<float> others = other.scratch(100);
  const std::span<float> after = context.scratch(100);
  CHECK(after.data() == before.data());
  CHECK(after.data() != others.data());
  others[0] = 1;
  after[0] = 2;
  CHECK(others[0] == 1);
}
