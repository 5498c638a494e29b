#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lazyllm/pruner/text.hpp"

using namespace lazyllm;

namespace {

using Points = std::vector<std::pair<Index, double>>;

Points points(const Schedule& schedule) {
  Points result;
  for (const LayerKeep& point : schedule.points()) result.emplace_back(point.layers_run, point.keep);
  return result;
}

std::string schedule_error(std::string_view text) {
  try {
    parse_schedule(text);
  } catch (const invalid_argument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("schedule text: reads what is written") {
  CHECK(points(parse_schedule("9:0.7,19:0.7,28:0.7")) == Points{{9, 0.7}, {19, 0.7}, {28, 0.7}});
  CHECK(points(parse_schedule("1:1")) == Points{{1, 1.0}});
  CHECK(points(parse_schedule("3:5e-1")) == Points{{3, 0.5}});
}

TEST_CASE("schedule text: text that is none is refused with the text and the part at fault") {
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
    CHECK(schedule_error(text) == "lazyllm: schedule '" + text + "': '" + part + "' is not LAYER:KEEP, e.g. 9:0.7");
  }
}

TEST_CASE("schedule text: of a long text the error has the beginning") {
  const std::string text(100'000, '9');
  const std::string shown = text.substr(0, 160) + "...";
  CHECK(schedule_error(text) == "lazyllm: schedule '" + shown + "': '" + shown + "' is not LAYER:KEEP, e.g. 9:0.7");
}

TEST_CASE("schedule text: values out of range are refused by name") {
  CHECK(schedule_error("3:0.5,3:0.5").find("layer 3 is out of range: it must be above 3") != std::string::npos);
  CHECK(schedule_error("3:nan") == "lazyllm: schedule: keep nan at layer 3 is out of range (0, 1]");
}

TEST_CASE("score text: reads what is written") {
  using enum Reduce;
  CHECK(parse_score("last") == AttentionScore{});
  CHECK(parse_score("mean:8") == AttentionScore{.last_queries = 8});
  CHECK(parse_score("max:3+pool:5") == AttentionScore{.last_queries = 3, .over_rows = max, .pooling = 5});
  CHECK(parse_score("last+heads:max") == AttentionScore{.over_heads = max});
  CHECK(parse_score("mean:32+pool:15+heads:max") ==
        AttentionScore{.over_heads = max, .last_queries = 32, .pooling = 15});
  CHECK(to_text(AttentionScore{.over_heads = max, .last_queries = 4, .over_layers = true, .pooling = 3}) ==
        "mean:4+heads:max+layers+pool:3");
  CHECK(parse_score("last+layers") == AttentionScore{.over_layers = true});
  CHECK(parse_score("mean:2+pool:7+layers") == AttentionScore{.last_queries = 2, .over_layers = true, .pooling = 7});
}

TEST_CASE("score text: text that is none is refused with the part at fault") {
  for (const auto& bad : std::vector<std::pair<std::string, std::string>>{{"", ""},
                                                                          {"first", "first"},
                                                                          {"mean", "mean"},
                                                                          {"mean:", "mean:"},
                                                                          {"mean:x", "mean:x"},
                                                                          {"max:3x", "max:3x"},
                                                                          {"pool:3", "pool:3"},
                                                                          {"last+pool:", "pool:"},
                                                                          {"last+heads:mean", "heads:mean"},
                                                                          {"heads:max", "heads:max"},
                                                                          {"last+", ""},
                                                                          {"last+max:3", "max:3"}}) {
    const std::string text = bad.first;
    const std::string part = bad.second;
    CAPTURE(text);
    const std::string message =
        "lazyllm: score '" + text + "': '" + part + "' is not understood; a score is " + score_syntax();
    CHECK_THROWS_WITH_AS(parse_score(text), message.c_str(), invalid_argument);
  }
  CHECK_THROWS_AS(parse_score("mean:0"), invalid_argument);
  CHECK_THROWS_AS(parse_score("last+pool:4"), invalid_argument);
}

TEST_CASE("schedules and scores: the text reads back to the same") {
  CHECK(to_text(Schedule()) == "dense");
  CHECK(parse_schedule("dense").points().empty());
  for (const char* text : {"dense", "9:0.7", "1:1,2:0.3333333333333333", "3:1e-300"}) {
    CHECK(to_text(parse_schedule(text)) == text);
  }
  for (const char* text : {"last", "mean:8", "max:2+pool:3", "last+layers+pool:5"}) {
    CHECK(to_text(parse_score(text)) == text);
  }
}

TEST_CASE("policy text: each name makes its policy") {
  const auto asked = [](const AnyPolicy& policy, Index steps = 0) {
    return policy({.layers_run = 2, .layers = 8, .active_tokens = 100, .tokens = 100, .new_tokens = 1, .steps = steps});
  };
  using enum Selection::Kind;
  CHECK(asked(parse_policy("2:0.5", 8)).kind == top_k);
  CHECK(asked(parse_policy("2:0.5", 8), 1).k == 50);
  CHECK(asked(parse_policy("top-p@2:0.5", 8)).kind == top_p);
  CHECK(asked(parse_policy("top-p@2:0.5", 8)).p == 0.5);
  CHECK(asked(parse_policy("static@2:0.5", 8)).k == 50);
  CHECK(asked(parse_policy("static@2:0.5", 8), 1).kind == not_pruned_before);
  CHECK(asked(parse_policy("paper", 8)).k == 70);
  CHECK(asked(parse_policy("dense", 8)).kind == all);
  for (const NamedPolicy& policy : named_policies) {
    const std::string prefix(policy.name);
    CHECK_FALSE(policy.meaning.empty());
    if (!policy.has_schedule()) {
      CHECK(asked(parse_policy(policy.name, 8)).kind != all);
      continue;
    }
    CHECK(asked(parse_policy(prefix + "2:0.25", 8)).kind != all);
    CHECK_THROWS_AS(parse_policy(prefix + "2", 8), invalid_argument);
    if (!prefix.empty()) CHECK_THROWS_AS(parse_policy(prefix + "paper", 8), invalid_argument);
  }
  CHECK_THROWS_WITH_AS(parse_policy("8:0.5", 8), doctest::Contains("layer 8 is out of range 1 to 7"), invalid_argument);
  CHECK_THROWS_WITH_AS(parse_policy("static@dense", 8), doctest::Contains("needs a list"), invalid_argument);
  CHECK_THROWS_WITH_AS(parse_policy("top-q@2:0.5", 8),
                       "lazyllm: schedule 'top-q@2:0.5': 'top-q@' is not one of top-p@, static@, paper",
                       invalid_argument);
}

TEST_CASE("score text: each part is read, written and named in the help") {
  for (const ScorePart& window : score_windows) {
    for (const ScorePart& option : score_options) {
      const auto numbered = [](const ScorePart& part) {
        return std::string(part.name) + (part.name.ends_with(':') ? "7" : "");
      };
      const std::string text = numbered(window) + "+" + numbered(option);
      CHECK(to_text(parse_score(text)) == text);
      CHECK(parse_score(text) != parse_score(numbered(window)));
      for (const ScorePart& part : {window, option}) {
        CHECK(score_syntax().find(part.name) != std::string::npos);
        CHECK(score_syntax().find(part.meaning) != std::string::npos);
      }
    }
  }
}

TEST_CASE("schedule and score text: a view of nothing is no text") {
  CHECK_THROWS_AS(parse_schedule(std::string_view()), invalid_argument);
  CHECK_THROWS_AS(parse_score(std::string_view()), invalid_argument);
}
