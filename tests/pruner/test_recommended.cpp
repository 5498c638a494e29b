#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "lazyllm/pruner/recommended.hpp"

using namespace lazyllm;

namespace {

/// Layers over the mean share of the tokens that they run with.
double speedup(const Preset& preset, Index layers) {
  double active = 1;
  double work = 0;
  for (Index layer = 0; layer < layers; ++layer) {
    if (const double* keep = preset.schedule.find(layer)) active *= *keep;
    work += active;
  }
  return static_cast<double>(layers) / work;
}

}  // namespace

TEST_CASE("recommended: as fast as asked, for models of any depth") {
  for (const Index layers : {2, 3, 6, 12, 24, 30, 80}) {
    CAPTURE(layers);
    double before = 1;
    for (const double wanted : {1.2, 1.5, 2.0, 2.34, 3.0, 4.0}) {
      CAPTURE(wanted);
      const Preset preset = recommended(layers, wanted);
      CHECK_NOTHROW(preset.schedule.check(layers));
      // Less than the pruned tokens' last feed-forward is worth.
      CHECK(speedup(preset, layers) <= wanted * 1.001);
      if (layers >= 24) CHECK(speedup(preset, layers) > 0.85 * wanted);
      CHECK(speedup(preset, layers) > before);
      before = speedup(preset, layers);
    }
  }
}

TEST_CASE("recommended: the same relative depths in every model, graded cuts and protected ends") {
  const Preset preset = recommended(30, 2.34);
  std::vector<Index> cuts;
  for (const LayerKeep& point : preset.schedule.points()) cuts.push_back(point.layers_run);
  CHECK(cuts == std::vector<Index>{5, 9, 14, 18});
  CHECK(recommended(60, 2.34).schedule.points()[1].layers_run == 19);
  CHECK(preset.score.over_heads == Reduce::max);
  CHECK(preset.protect_first == 4);
  CHECK(preset.protect_last == 32);
  CHECK(preset.decode_revived == 2);
  CHECK(preset.first_revived == 32);
  CHECK(recommended(30, 1.5).decode_revived == 2);
  CHECK_FALSE(recommended(30, 1.5).first_revived);
  CHECK(recommended(30, 1).schedule.points().empty());
}

TEST_CASE("recommended: what cannot be had is refused with the range") {
  CHECK_THROWS_WITH_AS(recommended(0, 2), "lazyllm: recommended: 0 layers are out of range, at least 1",
                       invalid_argument);
  for (const double speedup : {0.9, 4.1, -1.0}) {
    CHECK_THROWS_WITH_AS(recommended(30, speedup), doctest::Contains(" is out of range 1 to 4"), invalid_argument);
  }
  CHECK(recommended(1, 4).schedule.points().empty());
}

TEST_CASE("recommended: by its text") {
  CHECK(names_recommended("auto:2.3x"));
  CHECK_FALSE(names_recommended("paper"));
  CHECK(to_text(parse_recommended("auto:2.3x", 30).schedule) == to_text(recommended(30, 2.3).schedule));
  for (const char* text : {"auto", "auto:", "auto:x", "auto:2.3", "auto:2.3y", "auto:2.3xx", "auto: 2x", "paper"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(parse_recommended(text, 30), doctest::Contains("is not auto:SPEEDUPx, e.g. auto:2.3x"),
                         invalid_argument);
  }
  CHECK_THROWS_WITH_AS(parse_recommended("auto:9x", 30), "lazyllm: recommended: speedup 9 is out of range 1 to 4",
                       invalid_argument);
  CHECK_THROWS_AS(parse_recommended("auto:nanx", 30), invalid_argument);
}
