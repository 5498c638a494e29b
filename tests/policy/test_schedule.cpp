#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lazyllm/policy/schedule.hpp"
#include "lazyllm/policy/selection.hpp"

using namespace lazyllm;

namespace {

using Points = std::vector<std::pair<Index, double>>;

Points points(const Schedule& schedule) {
  Points result;
  for (const LayerKeep& point : schedule.points()) result.emplace_back(point.layers_run, point.keep);
  return result;
}

std::string parse_error(std::string_view text) {
  try {
    parse_schedule(text);
  } catch (const invalid_argument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

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

TEST_CASE("schedule: reads what is written") {
  CHECK(points(parse_schedule("9:0.7,19:0.7,28:0.7")) == Points{{9, 0.7}, {19, 0.7}, {28, 0.7}});
  CHECK(points(parse_schedule("1:1")) == Points{{1, 1.0}});
  CHECK(points(parse_schedule("3:5e-1")) == Points{{3, 0.5}});
}

TEST_CASE("schedule: text that is none is refused with the text and the part at fault") {
  for (const auto& bad : {std::pair<std::string, std::string>{"", ""},
                          {"9", "9"},
                          {"9:", "9:"},
                          {":0.7", ":0.7"},
                          {"9:0.7,", ""},
                          {"9:0.7,x:1", "x:1"},
                          {"9:0.7x", "9:0.7x"},
                          {"9 :0.7", "9 :0.7"},
                          {"9:0.7 ", "9:0.7 "},
                          {"9:0.7;3:1", "9:0.7;3:1"},
                          {"9.5:0.7", "9.5:0.7"},
                          {"99999999999999999999:0.5", "99999999999999999999:0.5"},
                          {"1:1:1", "1:1:1"}}) {
    const std::string text = bad.first;
    const std::string part = bad.second;
    CAPTURE(text);
    CHECK(parse_error(text) == "lazyllm: schedule '" + text + "': '" + part + "' is not LAYER:KEEP, e.g. 9:0.7");
  }
}

TEST_CASE("schedule: values out of range are refused by name") {
  CHECK(parse_error("0:0.5") ==
        "lazyllm: schedule: layer 0 is out of range: it must be above 0 (layers ascend, the first is at least 1)");
  CHECK(parse_error("-1:0.5").find("layer -1 is out of range") != std::string::npos);
  CHECK(parse_error("3:0.5,3:0.5").find("layer 3 is out of range: it must be above 3") != std::string::npos);
  CHECK(parse_error("4:0.5,3:0.5").find("layer 3 is out of range: it must be above 4") != std::string::npos);
  CHECK(parse_error("3:0") == "lazyllm: schedule: keep 0 at layer 3 is out of range (0, 1]");
  CHECK(parse_error("3:1.5") == "lazyllm: schedule: keep 1.5 at layer 3 is out of range (0, 1]");
  CHECK(parse_error("3:-0.5") == "lazyllm: schedule: keep -0.5 at layer 3 is out of range (0, 1]");
  CHECK(parse_error("3:nan") == "lazyllm: schedule: keep nan at layer 3 is out of range (0, 1]");
  CHECK_THROWS_AS((Schedule{{2, std::numeric_limits<double>::infinity()}}), invalid_argument);
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
