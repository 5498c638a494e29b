#include <doctest/doctest.h>

#include "lazyllm/layer/step_stats.hpp"

using namespace lazyllm;

TEST_CASE("stats: totals are sums over the layers") {
  const StepStats stats{.layers = {{.active = 9, .computed = 5, .revived = 0, .kept = 7},
                                   {.active = 7, .computed = 4, .revived = 2, .kept = 7},
                                   {.active = 7, .computed = 6, .revived = 3, .kept = 7}}};
  CHECK(stats.computed() == 15);
  CHECK(stats.revived() == 5);
  CHECK(StepStats{}.computed() == 0);
}
