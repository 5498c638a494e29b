#include <doctest/doctest.h>

#include <vector>

#include "lazyllm/policy/policies.hpp"

using namespace lazyllm;
using Kind = Selection::Kind;

namespace {

const Schedule schedule{{2, 0.5}, {4, 0.25}};

PrunePoint after(Index layers_run, Index steps = 0) {
  return {.layers_run = layers_run, .layers = 8, .active_tokens = 100, .tokens = 120, .new_tokens = 1, .steps = steps};
}

}  // namespace

TEST_CASE("KeepAll keeps all") { CHECK(KeepAll()(after(1)).kind == Kind::all); }

TEST_CASE("KeepRatio counts at its layers and keeps all elsewhere") {
  const KeepRatio policy(schedule);
  CHECK(policy(after(1)).kind == Kind::all);
  CHECK(policy(after(2)).kind == Kind::top_k);
  CHECK(policy(after(2)).k == 50);
  CHECK(policy(after(3)).kind == Kind::all);
  CHECK(policy(after(4)).k == 25);
  CHECK(policy(after(4)).protect_first == 0);
  CHECK(policy(after(4)).protect_last == 1);
}

TEST_CASE("a policy refuses a model that its schedule does not fit") {
  PrunePoint point = after(1);
  point.layers = 4;
  CHECK_THROWS_AS(KeepRatio{schedule}(point), invalid_argument);
  CHECK_THROWS_AS(KeepTopP{schedule}(point), invalid_argument);
  CHECK_THROWS_AS(StaticPruning{schedule}(point), invalid_argument);
}

TEST_CASE("PaperPolicy follows the depth of the model") {
  const auto pruning_layers = [](Index layers) {
    std::vector<Index> result;
    for (Index layer = 1; layer < layers; ++layer) {
      const Selection selection =
          PaperPolicy()({.layers_run = layer, .layers = layers, .active_tokens = 100, .tokens = 100});
      if (selection.kind == Kind::all) continue;
      CHECK(selection.kind == Kind::top_k);
      CHECK(selection.k == 70);
      result.push_back(layer);
    }
    return result;
  };
  CHECK(pruning_layers(32) == std::vector<Index>{9, 19, 28});
  CHECK(pruning_layers(36) == std::vector<Index>{10, 21, 32});
  for (Index layers = 1; layers <= 100; ++layers) {
    CAPTURE(layers);
    // Layer n is a pruning layer when 30 %, 60 % or 90 % of the layers have run, rounded down.
    std::vector<Index> expected;
    for (Index layer = 1; layer < layers; ++layer) {
      for (const Index percent : {30, 60, 90}) {
        const bool reached = 100 * layer <= percent * layers;
        const bool next_too_far = 100 * (layer + 1) > percent * layers;
        if (reached && next_too_far && (expected.empty() || expected.back() != layer)) expected.push_back(layer);
      }
    }
    CHECK(pruning_layers(layers) == expected);
  }
}

TEST_CASE("KeepTopP asks for a share of the scores") {
  const KeepTopP policy(schedule);
  CHECK(policy(after(1)).kind == Kind::all);
  CHECK(policy(after(2)).kind == Kind::top_p);
  CHECK(policy(after(2)).p == 0.5);
  CHECK(policy(after(4)).p == 0.25);
}

TEST_CASE("StaticPruning prunes in the first step and never revives") {
  const StaticPruning policy(schedule);
  CHECK(policy(after(1)).kind == Kind::all);
  CHECK(policy(after(2)).kind == Kind::top_k);
  CHECK(policy(after(2)).k == 50);
  for (const Index layer : {1, 2, 3, 4, 7}) CHECK(policy(after(layer, 1)).kind == Kind::not_pruned_before);
}

TEST_CASE("a selection ranks where scores choose") {
  CHECK_FALSE(Selection{.kind = Kind::all}.ranks());
  CHECK(Selection{.kind = Kind::top_k}.ranks());
  CHECK(Selection{.kind = Kind::top_p}.ranks());
  CHECK_FALSE(Selection{.kind = Kind::not_pruned_before}.ranks());
}

TEST_CASE("lambdas and std::function are policies") {
  const auto lambda = [](const PrunePoint& point) {
    return Selection{.kind = Kind::top_k, .k = point.active_tokens - 1};
  };
  static_assert(SelectionPolicy<decltype(lambda)>);
  static_assert(SelectionPolicy<Selection (*)(const PrunePoint&)>);
  static_assert(SelectionPolicy<AnyPolicy>);
  AnyPolicy chosen = lambda;
  CHECK(chosen(after(1)).k == 99);
  chosen = KeepTopP(schedule);
  CHECK(chosen(after(2)).p == 0.5);

  struct NotCallable {};
  const auto wrong_result = [](const PrunePoint&) { return 3; };
  const auto wrong_argument = [](const char*) { return Selection{}; };
  const auto changes_itself = [count = 0](const PrunePoint&) mutable { return Selection{.k = ++count}; };
  static_assert(!SelectionPolicy<NotCallable>);
  static_assert(!SelectionPolicy<decltype(wrong_result)>);
  static_assert(!SelectionPolicy<decltype(wrong_argument)>);
  static_assert(!SelectionPolicy<decltype(changes_itself)>);
}
