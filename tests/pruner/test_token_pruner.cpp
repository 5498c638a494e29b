#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#include "lazyllm/lazyllm.hpp"

using namespace lazyllm;
using Kind = Selection::Kind;

namespace {

const PrunePoint point{.layers_run = 3, .layers = 8, .active = 10, .tokens = 12, .new_tokens = 1, .steps = 0};

/// What a pruner makes of a policy's fixed answer.
Selection checked(const Selection& answer) {
  return TokenPruner([answer](const PrunePoint&) { return answer; }).selection(point);
}

std::string error(const Selection& answer) {
  try {
    checked(answer);
  } catch (const invalid_argument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("pruner: hands the policy's answer on") {
  const std::vector<std::uint8_t> mask{1};
  const Selection selection = checked(
      {.kind = Kind::count, .count = 9, .protect_first = 2, .protect_last = 3, .protect_mask = mask, .random_seed = 4});
  CHECK(selection.kind == Kind::count);
  CHECK(selection.count == 9);
  CHECK(selection.protect_first == 2);
  CHECK(selection.protect_last == 3);
  CHECK(selection.protect_mask.data() == mask.data());
  CHECK(selection.random_seed == 4);
  CHECK(checked({.kind = Kind::mass, .mass = 0.25}).mass == 0.25);
  CHECK(checked({.kind = Kind::mass, .mass = 0.25}).kind == Kind::mass);
  CHECK(checked({.kind = Kind::unparked}).kind == Kind::unparked);
}

TEST_CASE("pruner: asks the policy about the very point") {
  const TokenPruner pruner([](const PrunePoint& asked) {
    return Selection{.kind = Kind::count, .count = asked.layers_run + asked.new_tokens};
  });
  CHECK(pruner.selection(point).count == 4);
}

TEST_CASE("pruner: a count or mass that keeps everything is kind all, so that no score is computed") {
  CHECK(checked({.kind = Kind::count, .count = 10}).kind == Kind::all);
  CHECK(checked({.kind = Kind::count, .count = 11}).kind == Kind::all);
  CHECK(checked({.kind = Kind::count, .count = 9}).kind == Kind::count);
  CHECK(checked({.kind = Kind::mass, .mass = 1}).kind == Kind::all);
  CHECK(checked({.kind = Kind::mass, .mass = 0.999}).kind == Kind::mass);
}

TEST_CASE("pruner: answers out of range are refused with value, place and range") {
  CHECK(error({.kind = Kind::count, .count = 0}) ==
        "lazyllm: selection: count 0 after 3 layers is out of range, at least 1");
  CHECK(error({.kind = Kind::count, .count = -5}).find("count -5 after 3 layers") != std::string::npos);
  CHECK(error({.kind = Kind::mass, .mass = 0}) == "lazyllm: selection: mass 0 after 3 layers is out of range (0, 1]");
  CHECK(error({.kind = Kind::mass, .mass = 1.5}).find("mass 1.5 after 3 layers") != std::string::npos);
  CHECK(error({.kind = Kind::mass, .mass = std::numeric_limits<double>::quiet_NaN()}).find("mass nan") !=
        std::string::npos);
  const std::string protect = error({.protect_first = -1});
  CHECK(protect.find("protect_first -1 must be at least 0") != std::string::npos);
  CHECK(error({.protect_last = 0}).find("protect_last 0 at least 1") != std::string::npos);
}

TEST_CASE("pruner: a policy's exception comes through") {
  const TokenPruner pruner(KeepRatio(Schedule{{9, 0.5}}));
  CHECK_THROWS_WITH_AS(pruner.selection(point),
                       "lazyllm: schedule: layer 9 is out of range 1 to 7 of a model with 8 layers", invalid_argument);
}

TEST_CASE("pruner: checks its score when it is made") {
  CHECK_THROWS_AS(TokenPruner(KeepAll(), AttentionScore{.last_queries = 0}), invalid_argument);
  CHECK(TokenPruner(KeepAll(), AttentionScore{.last_queries = 5}).score().last_queries == 5);
  CHECK(TokenPruner(KeepAll()).score().last_queries == 1);
}
