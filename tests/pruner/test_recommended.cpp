#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "lazyllm/pruner/recommended.hpp"

using namespace lazyllm;

namespace {

/// Floating-point operations of a prefill, token by token: of the last layer K/V of all, and one row of the rest.
double operations(const Schedule& schedule, Index layers, const LayerWidths& w, Index tokens) {
  double sum = 0;
  double active = static_cast<double>(tokens);
  for (Index layer = 0; layer < layers; ++layer) {
    if (const double* keep = schedule.find(layer)) active = std::ceil(*keep * active - 1e-9);
    const double* pruned = schedule.find(layer + 1);
    const double go_on = pruned != nullptr ? std::ceil(*pruned * active - 1e-9) : active;
    const bool last = layer + 1 == layers;
    const double queries = last ? 1 : active;
    const auto hidden = static_cast<double>(w.hidden_size);
    const auto width = static_cast<double>(w.heads * w.head_dim);
    sum += active * 2 * hidden * 2 * static_cast<double>(w.kv_heads * w.head_dim);
    sum += queries * 2 * hidden * 2 * width;
    for (Index row = 0; row < static_cast<Index>(queries); ++row) {
      sum += 4 * width * (last ? active : static_cast<double>(row + 1));
    }
    sum += (last ? 1 : go_on) * 2 * hidden * 3 * static_cast<double>(w.intermediate_size);
  }
  return sum;
}

double speedup(const Preset& preset, Index layers, const LayerWidths& widths, Index tokens) {
  return operations({}, layers, widths, tokens) / operations(preset.schedule, layers, widths, tokens);
}

}  // namespace

TEST_CASE("recommended: as fast as asked at 2048 tokens, faster beyond, for models of any shape") {
  struct Shape {
    const char* name;
    Index layers;
    LayerWidths widths;
  };
  for (const Shape& shape :
       {Shape{"SmolLM2 135M", 30, {576, 9, 3, 64, 1536}}, Shape{"Qwen2.5 0.5B", 24, {896, 14, 2, 64, 4864}},
        Shape{"Qwen2.5 1.5B", 28, {1536, 12, 2, 128, 8960}}, Shape{"TinyLlama 1.1B", 22, {2048, 32, 4, 64, 5632}},
        Shape{"Llama 3.2 1B", 16, {2048, 32, 8, 64, 8192}}, Shape{"Mistral 7B", 32, {4096, 32, 8, 128, 14336}}}) {
    const Index layers = shape.layers;
    const LayerWidths& widths = shape.widths;
    CAPTURE(shape.name);
    for (const double wanted : {1.2, 1.5, 2.0, 2.34, 3.0, 4.0}) {
      CAPTURE(wanted);
      const Preset preset = recommended(layers, wanted, widths);
      CHECK(speedup(preset, layers, widths, 2048) >= 0.995 * wanted);
      CHECK(speedup(preset, layers, widths, 2048) <= 1.01 * wanted);
      CHECK(speedup(preset, layers, widths, 4096) >= wanted);
    }
  }
}

TEST_CASE("recommended: for models of any depth") {
  for (const Index layers : {3, 6, 12, 24, 30, 80}) {
    CAPTURE(layers);
    double before = 1;
    for (const double wanted : {1.2, 1.5, 2.0, 2.34, 3.0, 4.0}) {
      CAPTURE(wanted);
      const Preset preset = recommended(layers, wanted);
      CHECK_NOTHROW(preset.schedule.check(layers));
      CHECK(speedup(preset, layers, {}, 2048) > before);
      before = speedup(preset, layers, {}, 2048);
    }
  }
}

TEST_CASE("recommended: with fewer than 5 layers no cut keeps less than a fifth, and the speedup is what that allows") {
  const LayerWidths small{64, 8, 4, 8, 172};
  for (const double wanted : {1.5, 2.3, 4.0}) {
    CAPTURE(wanted);
    CHECK(to_text(recommended(2, wanted, small).schedule) == "1:0.2");
  }
  CHECK(speedup(recommended(2, 4, small), 2, small, 2048) < 1.3);
  CHECK(to_text(recommended(2, 4).schedule) == "1:0.2");
  CHECK(to_text(recommended(3, 4, small).schedule) == "1:0.2,2:0.447");
  CHECK(to_text(recommended(3, 4).schedule) == "1:0.213,2:0.462");  // is as fast as asked
  CHECK(to_text(recommended(5, 4, {16, 2, 1, 8, 24}).schedule) == "1:0.157,2:0.157,3:0.397");
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
  CHECK(preset.decode_revived == 3);
  CHECK(preset.first_revived == 32);
  CHECK(preset.continuations == 2);
  CHECK(preset.revive_from == 18);
  CHECK(preset.max_revived == recommended_max_revived);
  CHECK(recommended(30, 1.5).max_revived == recommended_max_revived);
  CHECK(recommended(30, 1.5).revive_from == 18);
  CHECK(recommended(30, 1.5).decode_revived == 4);
  CHECK(recommended(30, 1.5).continuations == 4);
  CHECK_FALSE(recommended(30, 1.5).first_revived);
  CHECK(recommended(30, 1).schedule.points().empty());
  CHECK_FALSE(recommended(30, 1).revive_from);
  CHECK(preset.min_tokens == 384);
}

TEST_CASE("recommended: what cannot be had is refused with the range") {
  CHECK_THROWS_WITH_AS(recommended(0, 2), "lazyllm: recommended: layers 0 is out of range 1 to 65535",
                       invalid_argument);
  CHECK_THROWS_AS(recommended(65536, 2), invalid_argument);
  CHECK_THROWS_AS(recommended(30, 2, {.heads = Index{1} << 40, .head_dim = Index{1} << 40}), invalid_argument);
  for (const double speedup : {0.9, 4.1, -1.0}) {
    CHECK_THROWS_WITH_AS(recommended(30, speedup), doctest::Contains(" is out of range 1 to 4"), invalid_argument);
  }
  CHECK_THROWS_WITH_AS(recommended(30, 2, {.kv_heads = 0}),
                       "lazyllm: recommended: kv_heads 0 is out of range 1 to 2147483647", invalid_argument);
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
