#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "lazyllm/lazyllm.hpp"

using namespace lazyllm;
using Kind = Selection::Kind;

namespace {

const PrunePoint point{.layers_run = 3, .layers = 8, .active_tokens = 10, .tokens = 12, .new_tokens = 1, .steps = 0};

/// What a pruner makes of a policy's fixed answer.
Selection checked(const Selection& answer) {
  return TokenPruner([answer](const PrunePoint&) { return answer; }).selection(point);
}

std::string refusal(const Selection& answer) {
  try {
    checked(answer);
  } catch (const invalid_argument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// A score that looks at no row.
struct NoRows {
  Index last_queries = 0;
  static void score(auto&, auto&, const LayerPlan&, auto, auto) {}
};

/// A score whose pooling may have no token in the middle.
struct EvenPooling {
  Index last_queries = 1;
  Index pooling = 4;
  static void score(auto&, auto&, const LayerPlan&, auto, auto) {}
};

}  // namespace

TEST_CASE("pruner: a score of one's own without a row is refused") {
  CHECK_THROWS_WITH_AS(TokenPruner(KeepAll(), NoRows()),
                       "lazyllm: TokenPruner: last_queries 0 of a score is out of range, at least 1", invalid_argument);
}

TEST_CASE("pruner: a score of one's own without a middle to its neighbours is refused") {
  for (const Index pooling : {-1, 0, 2, 4}) {
    CHECK_THROWS_WITH_AS(
        TokenPruner(KeepAll(), EvenPooling{.pooling = pooling}),
        ("lazyllm: TokenPruner: pooling " + std::to_string(pooling) + " of a score is out of range: odd and at least 1")
            .c_str(),
        invalid_argument);
  }
  CHECK_NOTHROW(TokenPruner(KeepAll(), EvenPooling{.pooling = 3}));
}

TEST_CASE("pruner: an empty policy is refused") {
  CHECK_THROWS_WITH_AS(TokenPruner<AnyPolicy>{AnyPolicy{}}, "lazyllm: TokenPruner: the policy is empty",
                       invalid_argument);
}

TEST_CASE("pruner: hands the policy's answer on") {
  const std::vector<std::uint8_t> mask{1};
  const Selection selection = checked(
      {.kind = Kind::top_k, .k = 9, .protect_first = 2, .protect_last = 3, .protect_mask = mask, .max_revived = 4});
  CHECK(selection.kind == Kind::top_k);
  CHECK(selection.k == 9);
  CHECK(selection.protect_first == 2);
  CHECK(selection.protect_last == 3);
  CHECK(selection.protect_mask.data() == mask.data());
  CHECK(selection.max_revived == 4);
  CHECK(checked({.kind = Kind::top_p, .p = 0.25}).p == 0.25);
  CHECK(checked({.kind = Kind::top_p, .p = 0.25}).kind == Kind::top_p);
  CHECK(checked({.kind = Kind::not_pruned_before}).kind == Kind::not_pruned_before);
}

TEST_CASE("pruner: asks the policy about the very point") {
  const TokenPruner pruner(
      [](const PrunePoint& asked) { return Selection{.kind = Kind::top_k, .k = asked.layers_run + asked.new_tokens}; });
  CHECK(pruner.selection(point).k == 4);
}

TEST_CASE("pruner: a k or p that keeps everything is kind all, so that no score is computed") {
  CHECK(checked({.kind = Kind::top_k, .k = 10}).kind == Kind::all);
  CHECK(checked({.kind = Kind::top_k, .k = 11}).kind == Kind::all);
  CHECK(checked({.kind = Kind::top_k, .k = 9}).kind == Kind::top_k);
  CHECK(checked({.kind = Kind::top_p, .p = 1}).kind == Kind::all);
  CHECK(checked({.kind = Kind::top_p, .p = 0.999}).kind == Kind::top_p);
  // Where revival is limited, something may stay parked although all tokens are selected.
  CHECK(checked({.kind = Kind::top_k, .k = 10, .max_revived = 3}).kind == Kind::top_k);
  CHECK(checked({.kind = Kind::top_p, .p = 1, .max_revived = 0}).kind == Kind::top_k);
  CHECK(checked({.kind = Kind::top_p, .p = 1, .max_revived = 0}).k == 10);
}

TEST_CASE("pruner: answers out of range are refused with value, place and range") {
  CHECK(refusal({.kind = Kind::top_k, .k = 0}) == "lazyllm: selection: k 0 after 3 layers is out of range, at least 1");
  CHECK(refusal({.kind = Kind::top_k, .k = -5}).find("k -5 after 3 layers") != std::string::npos);
  CHECK(refusal({.kind = Kind::top_p, .p = 0}) == "lazyllm: selection: p 0 after 3 layers is out of range (0, 1]");
  CHECK(refusal({.kind = Kind::top_p, .p = 1.5}).find("p 1.5 after 3 layers") != std::string::npos);
  CHECK(refusal({.kind = Kind::top_p, .p = std::numeric_limits<double>::quiet_NaN()}).find("p nan") !=
        std::string::npos);
  const std::string protect = refusal({.protect_first = -1});
  CHECK(protect.find("protect_first -1 must be at least 0") != std::string::npos);
  CHECK(refusal({.max_revived = -1}) ==
        "lazyllm: selection: max_revived -1 after 3 layers is out of range, at least 0");
  CHECK(refusal({.protect_last = 0}).find("protect_last 0 at least 1") != std::string::npos);
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

TEST_CASE("pruner: a task protects the last tokens that the policy or the step wants") {
  const std::vector<std::uint8_t> mask{0, 0, 0, 1, 0, 2};
  const std::vector<Position> keys{0, 3, 9};
  const std::vector<float> scores{1, 2, 3};
  const auto task = [&](Index policy, Index step) {
    return TokenPruner<KeepAll>::task(
        {.kind = Kind::top_k, .k = 2, .protect_first = 2, .protect_last = policy, .protect_mask = mask}, 10, step, keys,
        scores);
  };
  CHECK(task(3, 1).protect_from == 7);
  CHECK(task(3, 5).protect_from == 5);
  CHECK(task(1, 0).protect_from == 9);
  const SelectionTask one = task(3, 1);
  CHECK_FALSE(one.top_p);
  CHECK(one.k == 2);
  CHECK(one.keys.data() == keys.data());
  CHECK(one.scores.data() == scores.data());
  const std::vector<bool> expected{true, true, false, true, false, true, false, true, true, true};
  for (Position p = 0; p < 10; ++p) {
    CAPTURE(p);
    CHECK(one.protects(p) == expected[static_cast<std::size_t>(p)]);
  }
  const SelectionTask share = TokenPruner<KeepAll>::task({.kind = Kind::top_p, .p = 0.3}, 10, 1, keys, scores);
  CHECK(share.top_p);
  CHECK(share.p == 0.3);
}

TEST_CASE("pruner: kind is the policy's answer, unchecked") {
  for (const Index k : {0, 10, 99}) {
    CHECK(TokenPruner([k](const PrunePoint&) { return Selection{.kind = Kind::top_k, .k = k}; }).kind(point) ==
          Kind::top_k);
  }
}
