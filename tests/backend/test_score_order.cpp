#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "lazyllm/backend/score_order.hpp"

using namespace lazyllm;

namespace {

const float infinity = std::numeric_limits<float>::infinity();
const float not_a_number = std::numeric_limits<float>::quiet_NaN();
const float smallest = std::numeric_limits<float>::denorm_min();

}  // namespace

TEST_CASE("score order: keys are in the order of the scores, and both zeros are equal") {
  const std::vector<float> ascending{-infinity, -1e38F,       -2.5F,  -1.0F, -1e-38F, -smallest, 0.0F,
                                     smallest,  2 * smallest, 1e-38F, 0.5F,  1.0F,    3e38F,     infinity};
  for (std::size_t i = 0; i + 1 < ascending.size(); ++i) {
    CAPTURE(i);
    CHECK(detail::sort_key(ascending[i]) < detail::sort_key(ascending[i + 1]));
    CHECK(std::bit_cast<std::uint32_t>(detail::score_of(detail::sort_key(ascending[i]))) ==
          std::bit_cast<std::uint32_t>(ascending[i]));
  }
  CHECK(detail::sort_key(-0.0F) == detail::sort_key(0.0F));
}

TEST_CASE("score order: what is finite, and the higher of two scores") {
  for (const float score : {0.0F, -0.0F, smallest, 3e38F, -3e38F}) CHECK(detail::is_finite(score));
  for (const float score : {infinity, -infinity, not_a_number, -not_a_number}) CHECK_FALSE(detail::is_finite(score));
  CHECK(detail::higher(0.25F, 0.5F) == 0.5F);
  CHECK(detail::higher(0.5F, 0.25F) == 0.5F);
  CHECK(detail::higher(0.0F, smallest) == smallest);
  CHECK_FALSE(detail::is_finite(detail::higher(not_a_number, 1.0F)));
  CHECK_FALSE(detail::is_finite(detail::higher(1.0F, not_a_number)));
  CHECK_FALSE(detail::is_finite(detail::higher(1.0F, -not_a_number)));
  CHECK_FALSE(detail::is_finite(detail::higher(infinity, 1.0F)));
}

TEST_CASE("score order: the highest around leaves out what is not finite, but not its own place") {
  const std::vector<float> scores{-3, not_a_number, 2, infinity, -0.0F};
  const auto highest = [&](std::size_t i) {
    return detail::highest_around(scores[i], scores.data(), scores.data() + scores.size());
  };
  CHECK(highest(0) == 2);
  CHECK_FALSE(detail::is_finite(highest(1)));
  CHECK(highest(2) == 2);
  CHECK_FALSE(detail::is_finite(highest(3)));
  const std::vector<float> negative{-3, -2, -5};
  CHECK(detail::highest_around(-3, negative.data(), negative.data() + 3) == -2);
}

TEST_CASE("score units: sums of whole numbers keep what weighs, and never overflow") {
  for (const float highest : {1.0F, 3e38F, 1e-30F, smallest, 0.75F}) {
    for (const Index count : {1, 2, 1000, 1 << 20}) {
      CAPTURE(highest);
      CAPTURE(count);
      const detail::ScoreUnits units(highest, count);
      CHECK(units.of(highest) > 0);
      CHECK(units.of(highest) <= (std::int64_t{1} << 62) / count);
      CHECK(units.of(-highest) == 0);
      CHECK(units.of(0.0F) == 0);
      // A denormal score has few digits; they all count.
      if (highest > 1e-37F) CHECK(units.of(highest) >= (std::int64_t{1} << 62) / count / 4);
    }
  }
  CHECK(detail::ScoreUnits::share(0.5, 1000) == 500);
  CHECK(detail::ScoreUnits::share(1, std::int64_t{1} << 40) < std::int64_t{1} << 40);  // but for roundings
  CHECK(detail::ScoreUnits::share(1e-12, 100) == 0);
}
