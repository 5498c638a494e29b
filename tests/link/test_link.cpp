#include <doctest/doctest.h>

#include "link/units.hpp"

using namespace lazyllm;
using namespace lazyllm::test;

TEST_CASE("link: two translation units share the library and its objects") {
  const Pruner pruner(KeepRatio(Schedule{{1, 0.5}}));
  test::Sequence sequence(2, 3);
  CHECK(computed(sequence, pruner, 6) == 6 + 3);
  CHECK(computed_in_the_other_unit(sequence, pruner, 1) == 1 + 2);
}
