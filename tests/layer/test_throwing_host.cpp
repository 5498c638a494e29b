#include <doctest/doctest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/failing_context.hpp"
#include "support/sequence_state.hpp"
#include "support/tiny_engine.hpp"

/// A step that fails as a whole leaves every sequence as it was, wherever it fails.
using namespace lazyllm;
using namespace lazyllm::test;

namespace {

/// Two requests that prompts, decode steps and later turns bring on, one of them in chunks and with a row budget.
template <class Engine>
struct Scenario {
  using Pruner = typename Engine::Pruner;
  using Request = typename Engine::Request;
  static constexpr std::size_t steps = 6;

  struct Pair {
    Request a, b;
  };

  std::vector<typename Engine::Turn> turns(Pair& pair, std::size_t step) const {
    static const std::vector<std::vector<Index>> tokens_a{
        {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8}, {9}, {7, 30, 2, 2}, {9}, {3}, {4}};
    static const std::vector<std::vector<Index>> tokens_b{
        {2, 7, 1, 8, 2, 8}, {1, 8, 2, 8, 4}, {5}, {9, 4, 5, 2, 3, 5}, {}, {}};
    std::vector<typename Engine::Turn> result{{.request = &pair.a, .pruner = &first, .tokens = tokens_a[step]}};
    if (!tokens_b[step].empty() || pair.b.sequence.unfinished()) {
      result.push_back({.request = &pair.b,
                        .pruner = &second,
                        .tokens = tokens_b[step],
                        .more = step == 0,
                        .max_rows = step >= 3 ? 3 : Engine::unlimited});
    }
    return result;
  }

  /// Both requests before a step.
  Pair before(std::size_t step) {
    Pair pair{engine.request(), engine.request()};
    for (std::size_t earlier = 0; earlier < step; ++earlier) engine.run(turns(pair, earlier));
    return pair;
  }

  /// Tries each step with `disturb(0)`, `disturb(1)`, …, `disturb(attempts - 1)` in force, or, without a number of
  /// attempts, until one does not fail. Returns the failures.
  int fail_everywhere(const std::function<void(int)>& disturb, const std::function<void()>& calm, int attempts = -1) {
    int failures = 0;
    for (std::size_t step = 0; step < steps; ++step) {
      CAPTURE(step);
      const Pair original = before(step);
      Pair clean = before(step);
      const auto expected = engine.run(turns(clean, step));
      unfinished += clean.b.sequence.unfinished();
      revived += engine.step.stats().revived();
      for (int attempt = 0; attempt != attempts; ++attempt) {
        CAPTURE(attempt);
        Pair pair = before(step);
        disturb(attempt);
        bool threw = false;
        try {
          engine.run(turns(pair, step));
        } catch (const std::runtime_error& error) {
          threw = std::string(error.what()).ends_with("failed");
        }
        calm();
        if (!threw && attempts < 0) break;
        if (!threw) continue;  // no scores are asked for where nothing is ranked
        ++failures;
        CHECK_FALSE(engine.step.running());
        CHECK(state_of(pair.a.sequence) == state_of(original.a.sequence));
        CHECK(state_of(pair.b.sequence) == state_of(original.b.sequence));
        // What the engine has computed of this step is written again, and not read before.
        pair.a.cache = original.a.cache;
        pair.b.cache = original.b.cache;
        CHECK(engine.run(turns(pair, step)) == expected);
        CHECK(state_of(pair.a.sequence) == state_of(clean.a.sequence));
        CHECK(state_of(pair.b.sequence) == state_of(clean.b.sequence));
        CHECK(pair.a.cache.computed == clean.a.cache.computed);
        CHECK(pair.b.cache.computed == clean.b.cache.computed);
      }
    }
    return failures;
  }

  Engine& engine;
  const Pruner& first;
  const Pruner& second;
  Index revived = 0;
  int unfinished = 0;
};

/// Lets the host fail at every place of every layer.
template <class Engine>
int fail_blocks(Scenario<Engine>& scenario) {
  const auto disturb = [&](int attempt) {
    scenario.engine.hooks.at = [attempt](Index layer, Place place) {
      if (layer == attempt / 4 && static_cast<int>(place) == attempt % 4) throw std::runtime_error("the host failed");
    };
  };
  return scenario.fail_everywhere(
      disturb, [&] { scenario.engine.hooks.at = nullptr; }, 4 * 5);
}

const Schedule cuts{{1, 0.6}, {2, 0.6}, {4, 0.5}};

}  // namespace

TEST_CASE("a host that fails: dense") {
  TinyEngine<> engine;
  const TokenPruner<AnyPolicy> pruner{AnyPolicy(KeepAll())};
  Scenario<TinyEngine<>> scenario{engine, pruner, pruner};
  CHECK(fail_blocks(scenario) == 6 * 5 * 3);
  CHECK(scenario.revived == 0);
}

TEST_CASE("a host that fails: pruning without revival of what was pruned") {
  TinyEngine<> engine;
  const TokenPruner<AnyPolicy> pruner{AnyPolicy(StaticPruning(cuts))};
  Scenario<TinyEngine<>> scenario{engine, pruner, pruner};
  CHECK(fail_blocks(scenario) > 6 * 5 * 3);
}

TEST_CASE("a host that fails: pruning with revivals, windows and sums over the layers") {
  for (const AttentionScore& score : {AttentionScore{}, AttentionScore{.last_queries = 3, .over_layers = true}}) {
    TinyEngine<> engine;
    const TokenPruner<AnyPolicy> first(KeepRatio(cuts), score);
    const TokenPruner<AnyPolicy> second(ReviveAtMost<AnyPolicy>{KeepTopP(Schedule{{2, 0.8}, {3, 0.8}}), 2}, score);
    Scenario<TinyEngine<>> scenario{engine, first, second};
    CHECK(fail_blocks(scenario) > 6 * 5 * 3);
    CHECK(scenario.revived > 10);
    CHECK(scenario.unfinished >= 2);
  }
}

TEST_CASE("a backend that fails: in every call of every operation") {
  using Engine = TinyEngine<LibraryScores, AttentionScore, PooledStorage<FailingContext, float>>;
  for (const AttentionScore& score :
       {AttentionScore{.pooling = 3}, AttentionScore{.last_queries = 3, .over_layers = true}}) {
    Engine engine;
    const Engine::Pruner first(KeepRatio(cuts), score);
    const Engine::Pruner second(ReviveAtMost<AnyPolicy>{KeepTopP(Schedule{{2, 0.8}, {3, 0.8}}), 1}, score);
    Scenario<Engine> scenario{engine, first, second};
    const auto disturb = [&](int attempt) {
      engine.context.calls = 0;
      engine.context.failing = attempt;
    };
    CHECK(scenario.fail_everywhere(disturb, [&] { engine.context.failing = -1; }) > 80);
    CHECK(engine.context.copies_right);
    CHECK(scenario.revived > 10);
  }
}

TEST_CASE("a step that is given up or destroyed anywhere leaves the sequences as they were") {
  TinyEngine<> engine;
  const TokenPruner<AnyPolicy> pruner{AnyPolicy(KeepRatio(cuts))};
  Scenario<TinyEngine<>> scenario{engine, pruner, pruner};
  for (std::size_t step = 0; step < scenario.steps; ++step) {
    for (std::size_t layers = 0; layers <= 5; ++layers) {
      for (const bool destroyed : {false, true}) {
        CAPTURE(step);
        CAPTURE(layers);
        auto pair = scenario.before(step);
        const auto a = state_of(pair.a.sequence), b = state_of(pair.b.sequence);
        engine.begin(scenario.turns(pair, step));
        for (std::size_t layer = 0; layer < layers; ++layer) {
          engine.layers[layer].forward(engine.context, engine.step);
        }
        if (destroyed) {
          engine.step = {};
        } else {
          engine.step.abort();
        }
        CHECK(state_of(pair.a.sequence) == a);
        CHECK(state_of(pair.b.sequence) == b);
      }
    }
  }
}
