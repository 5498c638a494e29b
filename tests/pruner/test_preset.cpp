#include <doctest/doctest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "lazyllm/pruner/preset.hpp"
#include "tests/examples/llama/files.hpp"

using namespace lazyllm;
using Json = nlohmann::json;

namespace {

std::string read_error(const std::string& text) {
  Preset preset{.protect_first = 77};
  try {
    Json::parse(text).get_to(preset);
  } catch (const invalid_argument& error) {
    CHECK(preset.protect_first == 77);
    return error.what();
  }
  return "nothing was thrown";
}

// [preset-file]
auto pruner_of(const std::string& preset_file, const std::string& preset, lazyllm::Index layers) {
  const auto file = nlohmann::json::parse(std::ifstream(preset_file));
  const auto own_layers = file.at("layers").get<lazyllm::Index>();
  if (own_layers != layers) {
    throw std::invalid_argument(preset_file + ": it is for a model of " + std::to_string(own_layers) +
                                " layers, this one has " + std::to_string(layers));
  }
  return lazyllm::make_pruner(file.at("presets").at(preset).get<lazyllm::Preset>());
}
// [preset-file-end]

}  // namespace

TEST_CASE("preset: from a preset file to a pruner") {
  const llama::test::TemporaryFolder folder;
  const std::string path =
      folder.write("schedules.json", R"({"layers": 12, "presets": {"1%": {"schedule": "dense"}, "5%": {
      "schedule": "6:0.5", "score": "mean:8", "protect_last": 16}}})");
  CHECK_THROWS_WITH_AS(pruner_of(path, "5%", 24), doctest::Contains("for a model of 12 layers, this one has 24"),
                       std::invalid_argument);
  const auto pruner = pruner_of(path, "5%", 12);
  const Selection selection = pruner.selection(
      {.layers_run = 6, .layers = 12, .active_tokens = 100, .tokens = 100, .new_tokens = 100, .steps = 0});
  CHECK(selection.k == 50);
  CHECK(selection.protect_last == 16);
  CHECK(pruner.score().last_queries == 8);
}

TEST_CASE("preset: what a file says") {
  const Json file = Json::parse(R"({"presets": {"5%": {
      "schedule": "6:0.5,9:0.25", "score": "max:8+layers+pool:5", "protect_first": 4, "protect_last": 16,
      "max_revived": 32, "decode_revived": 8, "first_revived": 9, "continuations": 3, "revive_from": 6, "min_tokens": 70,
      "measured": {"loss": 0.04}}}})");
  const auto preset = file["presets"]["5%"].get<Preset>();
  REQUIRE(preset.schedule.points().size() == 2);
  CHECK(preset.schedule.points()[1].layers_run == 9);
  CHECK(preset.schedule.points()[1].keep == 0.25);
  CHECK(preset.score.last_queries == 8);
  CHECK(preset.score.over_rows == Reduce::max);
  CHECK(preset.score.over_layers);
  CHECK(preset.score.pooling == 5);
  CHECK(preset.protect_first == 4);
  CHECK(preset.protect_last == 16);
  CHECK(preset.max_revived == 32);
  CHECK(preset.decode_revived == 8);
  CHECK(preset.first_revived == 9);
  CHECK(preset.continuations == 3);
  CHECK(preset.revive_from == 6);
  CHECK(preset.min_tokens == 70);
}

TEST_CASE("preset: what a file leaves out is the paper's") {
  const auto preset = Json::parse(R"({"schedule": "6:0.5"})").get<Preset>();
  CHECK(preset.score.last_queries == 1);
  CHECK_FALSE(preset.score.over_layers);
  CHECK(preset.score.pooling == 1);
  CHECK(preset.protect_first == 0);
  CHECK(preset.protect_last == 1);
  CHECK(preset.max_revived == Selection::unlimited);
  CHECK_FALSE(preset.decode_revived);
  CHECK_FALSE(preset.first_revived);
  CHECK_FALSE(preset.revive_from);
  CHECK_FALSE(preset.min_tokens);
  CHECK(Json::parse(R"({"schedule": "dense"})").get<Preset>().schedule.points().empty());
}

TEST_CASE("preset: written and read again it is the same") {
  for (
      const char* text :
      {R"({"schedule":"dense","score":"last","protect_first":0,"protect_last":1})",
       R"({"schedule":"1:1","score":"last+layers","protect_first":0,"protect_last":2147483647})",
       R"({"schedule":"6:0.1,7:0.30000000000000004,9:1e-09","score":"mean:8+pool:5","protect_first":3,"protect_last":2})",
       R"({"schedule":"6:0.2","score":"max:2+layers+pool:3","protect_first":4,"protect_last":8})",
       R"({"schedule":"6:0.2","score":"last","protect_first":0,"protect_last":1,"max_revived":0})",
       R"({"schedule":"6:0.2","score":"last","protect_first":0,"protect_last":1,"decode_revived":2,"first_revived":0})",
       R"({"schedule":"6:0.2","score":"last","protect_first":0,"protect_last":1,"decode_revived":2,"continuations":4})",
       R"({"schedule":"6:0.2","score":"last","protect_first":0,"protect_last":1,"decode_revived":2,"revive_from":6})",
       R"({"schedule":"6:0.2","score":"last","protect_first":0,"protect_last":1,"min_tokens":256})",
       R"({"schedule":"6:0.2","score":"mean:2+heads:max","protect_first":0,"protect_last":1,"decode_revived":0})"}) {
    const Json json = Json::parse(text);
    CHECK(Json(json.get<Preset>()) == json);
    CHECK(nlohmann::ordered_json(json.get<Preset>()).dump() == text);
  }
}

TEST_CASE("preset: a number above the most tokens of a sequence is written as that, and can be read") {
  const Index most = std::numeric_limits<Position>::max();
  const Json json = Preset{.schedule = {{6, 0.5}}, .max_revived = most + 1, .decode_revived = most + 2};
  CHECK(json.at("max_revived") == most);
  CHECK(json.at("decode_revived") == most);
  CHECK(json.get<Preset>().max_revived == most);
  for (const char* name : {"protect_first", "protect_last"}) {
    const Json all = Preset{.schedule = {{6, 0.5}},
                            .protect_first = name == std::string("protect_first") ? Selection::unlimited : 0,
                            .protect_last = name == std::string("protect_last") ? Selection::unlimited : 1};
    CHECK(all.at(name) == most);
    CHECK_FALSE(all.contains("max_revived"));
  }
}

TEST_CASE("preset: an empty policy in its place is refused") {
  CHECK_THROWS_WITH_AS(make_pruner(AnyPolicy(), Preset{}), "lazyllm: make_pruner: the policy is empty",
                       invalid_argument);
}

TEST_CASE("preset: a count below its range is refused when the pruner is made") {
  const auto refused = [](const Preset& preset, const std::string& count) {
    CHECK_THROWS_WITH_AS(make_pruner(preset), ("lazyllm: preset: " + count + " is out of range, at least 0").c_str(),
                         invalid_argument);
  };
  refused({.protect_first = -1}, "protect_first -1");
  refused({.protect_last = -1}, "protect_last -1");
  refused({.max_revived = -2}, "max_revived -2");
  refused({.decode_revived = -1}, "decode_revived -1");
  refused({.decode_revived = 1, .first_revived = -3}, "first_revived -3");
  refused({.decode_revived = 1, .continuations = -1}, "continuations -1");
  refused({.decode_revived = 1, .revive_from = -1}, "revive_from -1");
  refused({.min_tokens = -5}, "min_tokens -5");
}

TEST_CASE("preset: the pruner does what it says") {
  const TokenPruner<AnyPolicy> pruner = make_pruner(
      {.schedule = {{3, 0.5}}, .score = {.last_queries = 4}, .protect_first = 2, .protect_last = 7, .max_revived = 5});
  CHECK(pruner.score().last_queries == 4);
  const auto select = [&](Index layers_run, Index layers = 10) {
    return pruner.selection({.layers_run = layers_run,
                             .layers = layers,
                             .active_tokens = 100,
                             .tokens = 100,
                             .new_tokens = 100,
                             .steps = 0});
  };
  CHECK(select(3).kind == Selection::Kind::top_k);
  CHECK(select(3).k == 50);
  CHECK(select(3).protect_first == 2);
  CHECK(select(3).protect_last == 7);
  CHECK(select(3).max_revived == 5);
  CHECK(select(2).kind == Selection::Kind::all);
  const auto decode = [](const std::optional<Index>& decode_revived, const std::optional<Index>& first_revived = {},
                         Index decoded_tokens = 0) {
    return make_pruner({.schedule = {{3, 0.5}},
                        .max_revived = 5,
                        .decode_revived = decode_revived,
                        .first_revived = first_revived})
        .selection({.layers_run = 3,
                    .layers = 10,
                    .active_tokens = 100,
                    .tokens = 100,
                    .new_tokens = 1,
                    .decoded_tokens = decoded_tokens});
  };
  CHECK(decode({}).k == 50);
  CHECK(decode({}).max_revived == 5);
  CHECK(decode(2).k == 100);
  CHECK(decode(2).max_revived == 2);
  CHECK(decode(7).max_revived == 7);
  CHECK(decode(2, 4).max_revived == 4);
  CHECK(decode(2, 9).max_revived == 9);
  CHECK(decode(2, 4, 1).max_revived == 2);
  CHECK_THROWS_WITH_AS(decode({}, 4), "lazyllm: preset: first_revived 4 needs decode_revived", invalid_argument);
  const std::vector<Position> followed = {9, 30, 4};
  const PrunePoint point = {
      .layers_run = 3, .layers = 10, .active_tokens = 100, .tokens = 100, .new_tokens = 1, .continuations = followed};
  const auto continued = [](std::optional<Index> decode_revived) {
    return make_pruner({.schedule = {{3, 0.5}}, .decode_revived = decode_revived, .continuations = 2});
  };
  CHECK(std::ranges::equal(continued(1).selection(point).protect, std::vector<Position>{9, 30}));
  CHECK_THROWS_WITH_AS(continued({}), "lazyllm: preset: continuations 2 need decode_revived", invalid_argument);
  const auto from = [&](std::optional<Index> decode_revived, Index layer) {
    return make_pruner({.schedule = {{3, 0.5}}, .decode_revived = decode_revived, .revive_from = layer})
        .selection(point);
  };
  CHECK(from(1, 3).kind == Selection::Kind::top_k);
  CHECK(from(1, 4).kind == Selection::Kind::not_pruned_before);
  CHECK_THROWS_WITH_AS(from({}, 4), "lazyllm: preset: revive_from 4 needs decode_revived", invalid_argument);
  CHECK_THROWS_WITH_AS(select(1, 3), doctest::Contains("layer 3 is out of range 1 to 2"), invalid_argument);
}

TEST_CASE("preset: short sequences can be left alone") {
  const auto pruner = make_pruner(
      {.schedule = {{3, 0.5}}, .protect_last = 7, .max_revived = 6, .decode_revived = 2, .min_tokens = 256});
  const auto select = [&](Index tokens, Index new_tokens, Index steps) {
    return pruner.selection({.layers_run = 3,
                             .layers = 10,
                             .active_tokens = tokens,
                             .tokens = tokens,
                             .new_tokens = new_tokens,
                             .steps = steps});
  };
  CHECK(select(255, 255, 0).kind == Selection::Kind::all);
  CHECK(select(255, 1, 1).kind == Selection::Kind::not_pruned_before);
  CHECK(select(256, 256, 0).k == 128);
  CHECK(select(256, 256, 0).protect_last == 7);
  CHECK(select(256, 1, 1).max_revived == 2);
  CHECK(select(276, 20, 1).max_revived == 6);
}

TEST_CASE("preset: anything else is refused by the member's name, its value and what is allowed") {
  CHECK(read_error("[]") == "lazyllm: preset: [] is not an object");
  CHECK(read_error("{}") == "lazyllm: preset: the member schedule is missing");
  CHECK(read_error(R"({"schedule": "6:0.5", "protekt_first": 4})") ==
        "lazyllm: preset: protekt_first is not a member; there are schedule, score, protect_first, protect_last, "
        "max_revived, decode_revived, first_revived, continuations, revive_from, min_tokens and measured");
  CHECK(read_error(R"({"schedule": [6, 0.5]})") == "lazyllm: preset: schedule [6,0.5] is not a text");
  CHECK(read_error(R"({"schedule": null})") == "lazyllm: preset: schedule null is not a text");
  CHECK(read_error(R"({"schedule": ""})").find("is not LAYER:KEEP") != std::string::npos);
  CHECK(read_error(R"({"schedule": "6:1.5"})") == "lazyllm: schedule: keep 1.5 at layer 6 is out of range (0, 1]");
  CHECK(read_error(R"({"schedule": "6:0.5", "score": 8})") == "lazyllm: preset: score 8 is not a text");
  CHECK(read_error(R"({"schedule": "6:0.5", "score": "mean:0"})").find("last_queries 0") != std::string::npos);
  for (const char* value : {"-1", "1.5", "2147483648", "18446744073709551615", "1e300", "\"4\"", "true", "null"}) {
    CHECK(read_error(std::string(R"({"schedule": "6:0.5", "protect_first": )") + value + "}") ==
          "lazyllm: preset: protect_first " + Json::parse(value).dump() +
              " is out of range: a whole number from 0 to 2147483647");
  }
  CHECK(read_error(R"({"schedule": "6:0.5", "protect_last": -1})") ==
        "lazyllm: preset: protect_last -1 is out of range: a whole number from 0 to 2147483647");
  CHECK(read_error(R"({"schedule": "6:0.5", "max_revived": -1})") ==
        "lazyllm: preset: max_revived -1 is out of range: a whole number from 0 to 2147483647");
  CHECK(read_error(R"({"schedule": [")" + std::string(1000, 'x') + R"("]})").size() < 200);
  Json built{{"schedule", "6:0.5"}};  // in code, or from a format whose texts nobody has checked
  built["protect_first"] = "\xff";
  CHECK_THROWS_WITH_AS(
      built.get<Preset>(),
      "lazyllm: preset: protect_first with a text that is not UTF-8 is out of range: a whole number from "
      "0 to 2147483647",
      invalid_argument);
}
