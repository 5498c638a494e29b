#include <doctest/doctest.h>

#include "lazyllm/error.hpp"
#include "lazyllm/policy/schedule.hpp"

using namespace lazyllm;

TEST_CASE("errors show numbers with all the digits that matter") {
  CHECK_THROWS_WITH_AS(Schedule({{3, 1.0000001}}),
                       doctest::Contains("keep 1.0000001 at layer 3 is out of range (0, 1]"), invalid_argument);
  CHECK_THROWS_WITH(detail::fail("share ", 1e-300), "lazyllm: share 1e-300");
  CHECK_THROWS_WITH(detail::fail("share ", 0.7F, " of ", 3, ' ', "tokens"), "lazyllm: share 0.7 of 3 tokens");
}
