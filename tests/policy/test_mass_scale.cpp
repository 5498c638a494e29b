#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "lazyllm/backend/cpu/select.hpp"

using namespace lazyllm;

TEST_CASE("the share of the scores' sum does not depend on their scale") {
  cpu::Context context;
  std::vector<Position> active(16);
  std::iota(active.begin(), active.end(), 0);
  const auto kept_at = [&](int exponent, double mass) {
    std::vector<float> scores;
    for (int i = 1; i <= 16; ++i) scores.push_back(std::ldexp(static_cast<float>(i), exponent));
    const SelectionTask task{{.kind = Selection::Kind::mass, .mass = mass}, 16, active, scores};
    KeptTokens kept;
    CHECK_FALSE(cpu::select(context, std::span(&task, 1), kept));
    return kept.indices;
  };
  // 16 + 15 + 14 + 13 + 12 = 70 of 136; 16 + 15 = 31 = 0.2279... of it
  CHECK(kept_at(0, 0.5) == std::vector<Index>{11, 12, 13, 14, 15});
  CHECK(kept_at(0, 31.0 / 136) == std::vector<Index>{14, 15});
  for (const int exponent : {-149, -140, -126, -60, -37, -30, 30, 60, 123}) {
    CAPTURE(exponent);
    for (const double mass : {0.001, 31.0 / 136, 0.5, 0.9, 1.0}) CHECK(kept_at(exponent, mass) == kept_at(0, mass));
  }
}
