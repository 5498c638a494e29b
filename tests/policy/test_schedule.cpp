#include <doctest/doctest.h>

#include <initializer_list>
#include <limits>
#include <string>

#include "lazyllm/policy/schedule.hpp"

using namespace lazyllm;

TEST_CASE("schedule: values out of range are refused by name") {
  const auto error = [](std::initializer_list<LayerKeep> points) -> std::string {
    try {
      (void)Schedule(points);
    } catch (const invalid_argument& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  CHECK(error({{0, 0.5}}) ==
        "lazyllm: schedule: layer 0 is out of range: it must be above 0 (layers ascend, the first is at least 1)");
  CHECK(error({{-1, 0.5}}).find("layer -1 is out of range") != std::string::npos);
  CHECK(error({{3, 0.5}, {3, 0.5}}).find("layer 3 is out of range: it must be above 3") != std::string::npos);
  CHECK(error({{4, 0.5}, {3, 0.5}}).find("layer 3 is out of range: it must be above 4") != std::string::npos);
  CHECK(error({{3, 0.0}}) == "lazyllm: schedule: keep 0 at layer 3 is out of range (0, 1]");
  CHECK(error({{3, 1.5}}) == "lazyllm: schedule: keep 1.5 at layer 3 is out of range (0, 1]");
  CHECK(error({{3, -0.5}}) == "lazyllm: schedule: keep -0.5 at layer 3 is out of range (0, 1]");
  CHECK(error({{3, std::numeric_limits<double>::quiet_NaN()}}) ==
        "lazyllm: schedule: keep nan at layer 3 is out of range (0, 1]");
  CHECK(error({{2, std::numeric_limits<double>::infinity()}}).find("keep inf at layer 2") != std::string::npos);
  CHECK(error({{1, 1}, {7, 0.25}}) == "nothing was thrown");
}

TEST_CASE("schedule: find gives the share of exactly the named layers") {
  const Schedule schedule{{2, 0.5}, {5, 0.25}};
  for (Index layer = 0; layer < 8; ++layer) {
    CAPTURE(layer);
    const double* keep = schedule.find(layer);
    CHECK((keep != nullptr) == (layer == 2 || layer == 5));
    if (layer == 5) CHECK(*keep == 0.25);
  }
  CHECK(Schedule().find(1) == nullptr);
}

TEST_CASE("schedule: a pruning layer must lie before the last layer") {
  const Schedule schedule{{2, 0.5}, {5, 0.5}};
  CHECK_NOTHROW(schedule.check(6));
  CHECK_THROWS_WITH_AS(schedule.check(5), "lazyllm: schedule: layer 5 is out of range 1 to 4 of a model with 5 layers",
                       invalid_argument);
  CHECK_NOTHROW(Schedule().check(1));
}
