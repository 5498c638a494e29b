#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "support/runs.hpp"
#include "support/scripted_engine.hpp"
#include "support/tiny_engine.hpp"

/// What an engine asks a step for beside its rows: segments of layers, and to be moved.
using namespace lazyllm;
using namespace lazyllm::test;

namespace {

using Engine = ScriptedEngine<>;

/// The batch of one layer, before and after its `advance`.
struct Record {
  std::vector<Position> positions, keys, limits;
  std::vector<Index> row_indptr, key_indptr;
  Step<Engine::Sequence, Engine::Pruner>::Segment segment;
  bool rows_change = false;  // between attention and feed-forward
  bool scored = false;

  bool same_plan(const Record& other) const {
    return positions == other.positions && keys == other.keys && limits == other.limits &&
           row_indptr == other.row_indptr && key_indptr == other.key_indptr;
  }
};

template <class T>
std::vector<T> list(std::span<const T> span) {
  return {span.begin(), span.end()};
}

/// Runs a begun step and writes down what it does.
std::vector<Record> record(Engine& engine) {
  std::vector<Record> records;
  for (auto& layer : engine.layers) {
    const LayerPlan plan = engine.step.plan();
    Record& now = records.emplace_back(Record{list(plan.positions()), list(plan.keys()), list(plan.key_limits()),
                                              list(plan.row_indptr()), list(plan.key_indptr()), engine.step.segment()});
    const float* before = engine.step.hidden().data;
    engine.script->scored_layer = -1;
    layer.forward(engine.context, engine.step);
    now.scored = engine.script->scored_layer == plan.layer();
    now.rows_change = engine.step.hidden().data != before || engine.step.hidden().rows != std::ssize(now.positions);
  }
  engine.step.end();
  return records;
}

void check_segments(const std::vector<Record>& records) {
  const Index layers = std::ssize(records);
  for (Index layer = 0; layer < layers; ++layer) {
    CAPTURE(layer);
    const auto& [first, last, scored_from, rows_change] = records[static_cast<std::size_t>(layer)].segment;
    CHECK(first == layer);
    REQUIRE(last >= layer);
    REQUIRE(last < layers);
    for (Index l = layer; l <= last; ++l) {
      CHECK(records[static_cast<std::size_t>(l)].scored == (l >= scored_from));
      CHECK(records[static_cast<std::size_t>(l)].same_plan(records[static_cast<std::size_t>(layer)]));
      if (l < last) CHECK_FALSE(records[static_cast<std::size_t>(l)].rows_change);
      CHECK(records[static_cast<std::size_t>(l)].segment.last == last);
    }
    CHECK(rows_change == (last + 1 < layers));
  }
}

}  // namespace

TEST_CASE("static pruning changes nothing in layers where nothing is parked") {
  Engine engine(6);
  const Engine::Pruner pruner(StaticPruning(Schedule{{4, 0.5}}));
  Engine::Sequence sequence = engine.sequence();
  engine.run({{&sequence, &pruner, 10}});
  // A decode step is two segments.
  std::vector<Engine::Entry> entries{{&sequence, &pruner, 1}};
  engine.begin(entries);
  CHECK(engine.step.segment().last == 3);
  CHECK(engine.step.segment().rows_change);
  for (auto& layer : engine.layers) layer.forward(engine.context, engine.step);
  engine.step.end();
  // A second prompt waits, in chunks or slices, at the cut alone.
  entries = {{.sequence = &sequence, .pruner = &pruner, .new_tokens = 4, .more = true}};
  engine.run(entries);
  CHECK(std::ranges::equal(sequence.depths().last(4), std::vector<Depth>{4, 4, 4, 0}));
  entries = {{.sequence = &sequence, .pruner = &pruner, .new_tokens = 8, .max_rows = 4}};
  int steps = 0;
  do {
    engine.run(entries);
    entries.front().new_tokens = 0;
    ++steps;
  } while (sequence.unfinished());
  CHECK(steps == 3 + 2);  // 9 rows up to the cut, then 12, of which the first 4 run in the third step
  CHECK(std::ranges::all_of(sequence.depths().last(13), [](Depth depth) { return depth == 6; }));
  CHECK(engine.script->rows_right);
}

TEST_CASE("segment: a dense step is one segment, a schedule cuts it where rows change") {
  Engine engine(6);
  const auto segments = [&](const AnyPolicy& policy) {
    const Engine::Pruner pruner{policy};
    Engine::Sequence sequence = engine.sequence();
    const std::vector<Engine::Entry> entries{{&sequence, &pruner, 10}};
    engine.begin(entries);
    const auto records = record(engine);
    check_segments(records);
    std::vector<std::pair<Index, Index>> result;
    for (Index layer = 0; layer < 6; layer = result.back().second + 1) {
      const auto& segment = records[static_cast<std::size_t>(layer)].segment;
      result.emplace_back(segment.first, segment.last);
    }
    return result;
  };
  using Segments = std::vector<std::pair<Index, Index>>;
  CHECK(segments(KeepAll()) == Segments{{0, 5}});
  CHECK(segments(KeepRatio(Schedule{{2, 0.5}, {5, 0.5}})) == Segments{{0, 1}, {2, 4}, {5, 5}});
  CHECK(segments(KeepRatio(Schedule{{2, 1}, {4, 0.5}})) == Segments{{0, 3}, {4, 5}});
}

TEST_CASE("segment: scores are asked of its last layer, or of all where they are summed") {
  Engine engine(6);
  const auto scored_from = [&](const AnyPolicy& policy, const AttentionScore& score) {
    const Engine::Pruner pruner{policy, score};
    Engine::Sequence sequence = engine.sequence();
    const std::vector<Engine::Entry> entries{{&sequence, &pruner, 10}};
    engine.begin(entries);
    std::vector<Index> result;
    for (const Record& layer : record(engine)) result.push_back(layer.segment.scored_from);
    return result;
  };
  const KeepRatio once(Schedule{{3, 0.5}});
  CHECK(scored_from(KeepAll(), {}) == std::vector<Index>{6, 6, 6, 6, 6, 6});
  CHECK(scored_from(once, {}) == std::vector<Index>{2, 2, 2, 6, 6, 6});
  CHECK(scored_from(once, {.over_layers = true}) == std::vector<Index>{0, 1, 2, 6, 6, 6});
}

TEST_CASE("segment: random batches with revivals, chunks and row budgets against what happens") {
  std::mt19937 random(3);
  for (unsigned round = 0; round < runs(150); ++round) {
    CAPTURE(round);
    Engine engine(5);
    std::vector<Engine::Sequence> sequences;
    std::vector<Engine::Pruner> pruners;
    std::vector<bool> ended(3, true);  // all tokens of the prompt are there
    for (int s = 0; s < 3; ++s) {
      sequences.push_back(engine.sequence());
      std::vector<LayerKeep> points;
      for (Index layer = 1; layer < 5; ++layer) {
        if (random() % 2 == 0) points.push_back({layer, 0.4 + 0.1 * static_cast<double>(random() % 6)});
      }
      pruners.emplace_back(KeepRatio(Schedule(points)), AttentionScore{.over_layers = random() % 4 == 0});
    }
    for (int step = 0; step < 6; ++step) {
      for (float& score : engine.script->scores) score = static_cast<float>(random() % 50);
      std::vector<Engine::Entry> entries;
      for (std::size_t s = 0; s < sequences.size(); ++s) {
        if (random() % 4 == 0) continue;
        const bool waits = ended[s] && sequences[s].unfinished();
        ended[s] = waits || random() % 3 != 0;
        entries.push_back({.sequence = &sequences[s],
                           .pruner = &pruners[s],
                           .new_tokens = waits ? 0 : 1 + static_cast<Index>(random() % 6),
                           .more = !ended[s],
                           .max_rows = random() % 3 == 0 ? 3 : Engine::Entry::unlimited});
      }
      if (entries.empty()) continue;
      engine.begin(entries);
      check_segments(record(engine));
      CHECK(engine.script->rows_right);
    }
  }
}

TEST_CASE("step: layers in which no sequence has rows do not call the blocks") {
  Engine engine(5);
  const Engine::Pruner pruner{KeepRatio(Schedule{{2, 0.5}})};
  Engine::Sequence sequence = engine.sequence();
  engine.script->feed_forward_rows = 0;
  engine.run({{.sequence = &sequence, .pruner = &pruner, .new_tokens = 6, .more = true}});
  // The script notes a block that is called without rows as an error.
  CHECK(engine.script->rows_right);
  CHECK(engine.script->feed_forward_rows == 5);  // after layer 0 only: at layer 1 all rows are parked
  CHECK(engine.step.stats().computed() == 10);
  // A chunk of one token has no rows at all: it may be the one that scores.
  Engine::Sequence one = engine.sequence();
  engine.run({{.sequence = &one, .pruner = &pruner, .new_tokens = 1, .more = true}});
  CHECK(engine.step.stats().computed() == 0);
  CHECK(one.length() == 1);
  CHECK(one.unfinished());
  engine.run({{.sequence = &one, .pruner = &pruner, .new_tokens = 1}});
  CHECK(engine.step.stats().computed() == 2 + 2 + 1 + 1 + 1);
  CHECK(engine.script->rows_right);
}

TEST_CASE("step: can be moved while it is idle and while it runs") {
  using Tiny = TinyEngine<>;
  const TokenPruner<AnyPolicy> pruner(KeepRatio(Schedule{{1, 0.6}, {3, 0.5}}), AttentionScore{.over_layers = true});
  Tiny still;
  Tiny::Request a = still.request();
  const std::vector<std::vector<Index>> turns{{1, 2, 3, 4, 5, 6, 7, 8, 9}, {4}, {1, 2, 3}, {9}};
  std::vector<Tiny::Result> expected;
  for (const auto& tokens : turns) expected.push_back(still.run({{&a, &pruner, tokens}}).front());
  for (std::size_t at = 0; at <= 5; ++at) {
    CAPTURE(at);
    Tiny engine;
    Tiny::Request b = engine.request();
    for (std::size_t turn = 0; turn < turns.size(); ++turn) {
      engine.begin({{&b, &pruner, turns[turn]}});
      for (std::size_t layer = 0; layer < 5; ++layer) {
        if (layer == at) {
          Tiny::Step moved = std::move(engine.step);
          CHECK(moved.running());
          CHECK_FALSE(engine.step.running());
          engine.step = std::move(moved);
        }
        engine.layers[layer].forward(engine.context, engine.step);
      }
      Tiny::Step last = std::move(engine.step);
      const StepOutput<float> output = last.end();
      CHECK(engine.model.logits(output.of(0).row(0)) == expected[turn].logits.front());
      engine.step = std::move(last);  // idle
    }
    CHECK(b.depths() == a.depths());
  }
}

TEST_CASE("step: a running one that is assigned to gives up its own step first") {
  Engine engine(3);
  const Engine::Pruner pruner{KeepAll()};
  Engine::Sequence a = engine.sequence(), b = engine.sequence();
  engine.step.begin(engine.context, a, pruner, 4);
  Engine::Step other;
  other.begin(engine.context, b, pruner, 2);
  engine.step = std::move(other);
  CHECK(a.length() == 0);
  CHECK_NOTHROW(a.truncate(0));
  CHECK(b.length() == 2);
  engine.step.abort();
  CHECK(b.length() == 0);
  // What was moved from begins anew.
  const RowsView<float> rows = other.begin(engine.context, a, pruner, 2);
  CHECK(rows.rows == 2);
  std::fill_n(rows.data, rows.rows * rows.width, 1.0F);
  other.abort();
}
