#include <doctest/doctest.h>

#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/sequence_state.hpp"
#include "support/tiny_engine.hpp"

/// A request whose policy throws, or whose scores are no numbers, fails alone.
using namespace lazyllm;
using namespace lazyllm::test;

namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
const Schedule three_cuts{{1, 0.7}, {2, 0.7}, {4, 0.5}};

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& thrown) {
    return thrown.what();
  }
}

/// How one of the requests fails.
enum class Kind { policy, engine_scores, library_scores };

/// Three requests with a prompt behind them and a second one to come, of which the second is in chunks.
template <class Engine>
struct Batch {
  using Pruner = typename Engine::Pruner;
  using Request = typename Engine::Request;
  using Turn = typename Engine::Turn;

  explicit Batch(Engine& engine_) : engine(engine_) {
    for (std::size_t s = 0; s < 3; ++s) requests.push_back(engine.request());
    engine.run({turn(0, {1, 2, 3, 4, 5, 6, 7, 8, 9}), turn(1, {9, 8, 7, 6, 5, 4, 3}), turn(2, {5, 5, 1, 5})});
    engine.run({chunk()});
  }

  Turn turn(std::size_t s, std::vector<Index> tokens) {
    return {.request = &requests[s], .pruner = &good, .tokens = std::move(tokens)};
  }
  Turn chunk() {
    Turn result = turn(1, {4, 4, 1, 2});
    result.more = true;
    return result;
  }
  /// The step in which something fails: a second turn, the end of a prompt in chunks, and a decode step.
  std::vector<Turn> turns() {
    std::vector<Turn> result{turn(0, {3, 1, 4, 1}), turn(1, {2, 7, 1}), turn(2, {6})};
    result[0].outputs = 2;
    return result;
  }

  Engine& engine;
  Pruner good{KeepRatio(three_cuts), AttentionScore{.last_queries = 2}};
  std::vector<Request> requests;
};

constexpr const char* not_finite =
    " layers is not finite; if the library scores, one such product of Q and K makes all so";

/// Lets request `failing` of three fail after `layer` layers; returns whether it did.
template <class Engine>
bool fails_alone(Kind kind, std::size_t failing, Index layer) {
  Engine engine;
  using Request = typename Engine::Request;
  Batch<Engine> batch(engine), clean(engine), without(engine);
  const auto expected = engine.run(clean.turns());
  auto others = without.turns();
  others.erase(others.begin() + static_cast<Index>(failing));
  const auto expected_others = engine.run(others);

  const auto before = state_of(batch.requests[failing].sequence);
  const TinyCache<float> cache_before = batch.requests[failing].cache;
  auto turns = batch.turns();
  const typename Engine::Pruner bad(
      [&](const PrunePoint& point) {
        if (point.layers_run == layer) throw std::runtime_error("a bad policy");
        return KeepRatio(three_cuts)(point);
      },
      AttentionScore{.last_queries = 2});
  Position bad_position = -1;
  if (kind == Kind::policy) {
    turns[failing].pruner = &bad;
  } else if (kind == Kind::engine_scores) {
    engine.hooks.scored = [&](const LayerPlan& plan, const ScoreWindow& window) {
      if (plan.layer() + 1 != layer || window.sequence != static_cast<Index>(failing)) return;
      window.scores.back() = not_a_number;
      bad_position = plan.sequence(window.sequence).keys.back();
    };
  } else {
    engine.hooks.at = [&](Index at, Place place) {
      if (at + 1 != layer || place != Place::after_attention) return;
      const Positions keys = engine.step.plan().sequence(static_cast<Index>(failing)).keys;
      if (keys.empty()) return;
      *batch.requests[failing].cache.key(at, keys.front()) = not_a_number;
    };
  }
  const auto found = engine.run(turns);
  engine.hooks = {};
  if (found[failing].failure == nullptr) {
    CHECK(kind != Kind::policy);  // no scores are asked for where nothing is ranked
    return false;
  }

  // Who failed, and why.
  const std::string reason = message_of(found[failing].failure);
  if (kind == Kind::policy) {
    CHECK(reason == "a bad policy");
  } else if (kind == Kind::engine_scores) {
    CHECK(reason == "lazyllm: the score of position " + std::to_string(bad_position) + " of entry " +
                        std::to_string(failing) + " after " + std::to_string(layer) + not_finite);
  } else {  // a bad key spoils the scores of all keys that its query sees
    CHECK(reason.ends_with(" of entry " + std::to_string(failing) + " after " + std::to_string(layer) + not_finite));
  }
  CHECK(found[failing].logits.empty());

  // The others have not noticed.
  for (std::size_t s = 0, other = 0; s < 3; ++s) {
    if (s == failing) continue;
    CHECK(found[s].failure == nullptr);
    CHECK(found[s] == expected_others[other++]);
    CHECK(state_of(batch.requests[s].sequence) == state_of(without.requests[s].sequence));
    CHECK(batch.requests[s].cache.computed == without.requests[s].cache.computed);
  }

  // The one that failed is what it was, and can be tried again.
  Request& request = batch.requests[failing];
  CHECK(state_of(request.sequence) == before);
  request.cache = cache_before;
  const auto again = engine.run({batch.turns()[failing]});
  CHECK(again.front() == expected[failing]);
  CHECK(state_of(request.sequence) == state_of(clean.requests[failing].sequence));
  CHECK(request.cache.computed == clean.requests[failing].cache.computed);
  return true;
}

template <class Engine>
int failures(Kind kind) {
  int count = 0;
  for (std::size_t failing = 0; failing < 3; ++failing) {
    for (Index layer = 1; layer < 5; ++layer) {
      CAPTURE(failing);
      CAPTURE(layer);
      count += fails_alone<Engine>(kind, failing, layer);
    }
  }
  return count;
}

}  // namespace

TEST_CASE("one bad request: a policy that throws, in any layer") {
  CHECK(failures<TinyEngine<EngineScores>>(Kind::policy) == 3 * 4);
  CHECK(failures<TinyEngine<LibraryScores>>(Kind::policy) == 3 * 4);
}

TEST_CASE("one bad request: a score of the engine that is no number, in any layer that ranks") {
  CHECK(failures<TinyEngine<EngineScores>>(Kind::engine_scores) == 3 * 3);
}

TEST_CASE("one bad request: K that is no number, in any layer that ranks") {
  CHECK(failures<TinyEngine<LibraryScores>>(Kind::library_scores) == 3 * 3);
}

TEST_CASE("one bad request: infinite scores, pooled or summed over the layers") {
  using Engine = TinyEngine<EngineScores>;
  for (const float bad : {not_a_number, std::numeric_limits<float>::infinity()}) {
    for (const AttentionScore& score : {AttentionScore{.pooling = 5}, AttentionScore{.over_layers = true}}) {
      Engine engine;
      const Engine::Pruner pruner(KeepTopP(three_cuts), score);
      Engine::Request a = engine.request(), b = engine.request(), alone = engine.request();
      const auto expected = engine.run({{&alone, &pruner, {1, 2, 3, 4, 5, 6}}});
      engine.hooks.scored = [&](const LayerPlan& plan, const ScoreWindow& window) {
        if (plan.layer() == 0 && window.sequence == 0) window.scores[1] = bad;
      };
      const auto found = engine.run({{&a, &pruner, {6, 5, 4, 3, 2}}, {&b, &pruner, {1, 2, 3, 4, 5, 6}}});
      REQUIRE(found[0].failure != nullptr);
      CHECK(message_of(found[0].failure) ==
            std::string("lazyllm: the score of position 1 of entry 0 after 1") + not_finite);
      CHECK(a.sequence.length() == 0);
      CHECK(found[1] == expected.front());
    }
  }
}

TEST_CASE("one bad request: where all fail, the first one's error is thrown and each can be read") {
  using Engine = TinyEngine<EngineScores>;
  Engine engine;
  Batch<Engine> batch(engine);
  auto turns = batch.turns();
  std::vector<Engine::Pruner> pruners;
  for (const Index layers_run : {4, 1, 2}) {
    pruners.emplace_back([layers_run](const PrunePoint& point) -> Selection {
      if (point.layers_run == layers_run) throw std::runtime_error("after " + std::to_string(layers_run));
      return KeepRatio(three_cuts)(point);
    });
  }
  for (std::size_t s = 0; s < 3; ++s) turns[s].pruner = &pruners[s];
  const auto run = [&] {
    engine.begin(turns);
    for (auto& layer : engine.layers) layer.forward(engine.context, engine.step);
  };
  CHECK_THROWS_WITH_AS(run(), "after 4", std::runtime_error);
  CHECK_FALSE(engine.step.running());
  REQUIRE(engine.step.failures().size() == 3);
  CHECK(engine.step.failures()[1].entry == 1);
  CHECK(message_of(engine.step.failures()[1].error) == "after 1");
  CHECK(message_of(engine.step.failures()[2].error) == "after 2");
  CHECK_THROWS_AS(engine.step.begin(engine.context, {}), invalid_argument);
  CHECK(engine.step.failures().empty());
}

TEST_CASE("one bad request: two of three fail, at different places; both are named in order of entries") {
  using Engine = TinyEngine<EngineScores>;
  Engine engine;
  Batch<Engine> batch(engine);
  auto turns = batch.turns();
  const Engine::Pruner late([](const PrunePoint& point) -> Selection {
    if (point.layers_run == 4) throw std::runtime_error("late");
    return KeepRatio(three_cuts)(point);
  });
  const Engine::Pruner early([](const PrunePoint&) -> Selection { throw std::runtime_error("early"); });
  turns[0].pruner = &late;
  turns[2].pruner = &early;
  engine.begin(turns);
  for (auto& layer : engine.layers) layer.forward(engine.context, engine.step);
  const StepOutput<float> output = engine.step.end();
  REQUIRE(output.failures.size() == 2);
  CHECK(output.failures[0].entry == 0);
  CHECK(message_of(output.failures[0].error) == "late");
  CHECK(output.failures[1].entry == 2);
  CHECK(message_of(output.failures[1].error) == "early");
  CHECK(output.of(0).rows == 0);
  CHECK(output.of(1).rows == 1);
  CHECK(output.of(2).rows == 0);
  engine.run({batch.turns()[0]});
  CHECK(engine.step.stats().layers.size() == 5);
}

TEST_CASE("one bad request: a step in which all have failed throws what the first one threw") {
  using Engine = TinyEngine<EngineScores>;
  for (const bool in_begin : {true, false}) {
    Engine engine;
    Batch<Engine> batch(engine);
    std::vector<SequenceState<float>> before;
    for (const auto& request : batch.requests) before.push_back(state_of(request.sequence));
    auto turns = batch.turns();
    const auto throwing = [in_begin](const char* text) {
      return [in_begin, text](const PrunePoint& point) -> Selection {
        if (in_begin || point.layers_run == 4) throw std::domain_error(text);
        return KeepRatio(three_cuts)(point);
      };
    };
    const Engine::Pruner first(throwing("first")), second(throwing("second")), third(throwing("third"));
    turns[0].pruner = &first;
    turns[1].pruner = &second;
    turns[2].pruner = &third;
    CHECK_THROWS_WITH_AS(engine.run(turns), "first", std::domain_error);
    CHECK_FALSE(engine.step.running());
    for (std::size_t s = 0; s < 3; ++s) CHECK(state_of(batch.requests[s].sequence) == before[s]);
  }
}

TEST_CASE("one bad request: a policy that throws where a prompt goes on from a deeper layer") {
  using Engine = TinyEngine<EngineScores>;
  Engine engine;
  bool broken = false;
  const Engine::Pruner good{KeepRatio(three_cuts)};
  const Engine::Pruner bad([&](const PrunePoint& point) {
    if (broken) throw std::runtime_error("a bad policy");
    return KeepRatio(three_cuts)(point);
  });
  Engine::Request a = engine.request(), b = engine.request(), alone = engine.request();
  const auto expected = engine.run({{.request = &alone, .pruner = &good, .tokens = {5, 5, 1, 5}}});
  engine.run({{.request = &a, .pruner = &bad, .tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6}, .max_rows = 3}});
  // Four steps to layer 1, of which 9 tokens stay: two slices of 3 have gone on, the last one ranks.
  for (int step = 0; step < 4; ++step) engine.run({{.request = &a, .pruner = &bad, .tokens = {}, .max_rows = 3}});
  REQUIRE(a.sequence.unfinished());
  const auto before = state_of(a.sequence);
  broken = true;
  const auto found = engine.run({{.request = &a, .pruner = &bad, .tokens = {}, .max_rows = 3},
                                 {.request = &b, .pruner = &good, .tokens = {5, 5, 1, 5}}});
  REQUIRE(found[0].failure != nullptr);
  CHECK(message_of(found[0].failure) == "a bad policy");
  CHECK(state_of(a.sequence) == before);
  CHECK(found[1].failure == nullptr);
  CHECK(found[1] == expected.front());
}
