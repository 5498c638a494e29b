#include <doctest/doctest.h>

#include "lazyllm/policy/selection.hpp"

using namespace lazyllm;

TEST_CASE("keep_count: a table") {
  CHECK(keep_count(0.7, 10) == 7);
  CHECK(keep_count(0.7, 11) == 8);
  CHECK(keep_count(0.1 + 0.2, 10) == 3);
  CHECK(keep_count(1.0 / 3, 3) == 1);
  CHECK(keep_count(1.0 / 3, 4) == 2);
  CHECK(keep_count(1.0 / 3, 300000) == 100000);
  CHECK(keep_count(2.0 / 3, 3) == 2);
  CHECK(keep_count(0.5, 1) == 1);
  CHECK(keep_count(0.5, 3) == 2);
  CHECK(keep_count(1.0, 1) == 1);
  CHECK(keep_count(1.0, 123457) == 123457);
  CHECK(keep_count(1e-12, 5) == 1);
  CHECK(keep_count(1e-12, 1000000) == 1);
  CHECK(keep_count(1e-3, 1000) == 1);
  CHECK(keep_count(1e-3, 1001) == 2);
}

TEST_CASE("keep_count: whole percentages against integer arithmetic") {
  bool equal = true;
  for (Index percent = 1; percent <= 100; ++percent) {
    for (Index active = 1; active <= 2000; ++active) {
      equal &= keep_count(static_cast<double>(percent) / 100, active) == (percent * active + 99) / 100;
    }
  }
  CHECK(equal);
}
