#include <doctest/doctest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "support/scripted_engine.hpp"

using namespace lazyllm;
using namespace lazyllm::test;

namespace {

using Engine = ScriptedEngine<>;

std::vector<Index> counts(const StepStats& stats, Index LayerStats::*count) {
  std::vector<Index> result;
  for (const LayerStats& layer : stats.layers) result.push_back(layer.*count);
  return result;
}

using Counts = std::vector<Index>;

}  // namespace

TEST_CASE("layer: prefill prunes step by step and leaves the pruned rows' feed-forward undone") {
  Engine engine(4);
  Engine::Sequence sequence = engine.sequence();
  const Engine::Pruner pruner(KeepRatio(Schedule{{1, 0.5}, {2, 0.5}}));
  const RowsView<float> last = engine.run({{&sequence, &pruner, 10}}).rows;
  const StepStats& stats = engine.step.stats();
  CHECK(counts(stats, &LayerStats::active) == Counts{10, 5, 3, 3});
  CHECK(counts(stats, &LayerStats::computed) == Counts{10, 5, 3, 3});
  CHECK(counts(stats, &LayerStats::revived) == Counts{0, 0, 0, 0});
  CHECK(counts(stats, &LayerStats::kept) == Counts{5, 3, 3, 3});
  CHECK(engine.script->rows_right);
  // The rows kept after each layer, and of the last layer the one row that is read.
  CHECK(engine.script->feed_forward_rows == 5 + 3 + 3 + 1);
  CHECK(stats.aux_rows == 7);
  CHECK(stats.aux_bytes == 7 * 3 * 4);
  CHECK(last.rows == 1);
  CHECK(last.row(0)[0] == 4);
  CHECK(last.row(0)[1] == 4);
  CHECK(last.row(0)[2] == 109);
}

TEST_CASE("layer: tokens revived go on from where they stopped, and may stop again") {
  Engine engine(4);
  Engine::Sequence sequence = engine.sequence();
  const Engine::Pruner pruner(KeepRatio(Schedule{{1, 0.5}, {2, 0.5}}));
  auto& scores = engine.script->scores;
  scores[0] = scores[1] = scores[2] = scores[3] = 9;
  engine.run({{&sequence, &pruner, 10}});  // after layer 1: 0-3 and 9, after layer 2: 0, 1, 9
  engine.script->feed_forward_rows = 0;
  scores[5] = scores[6] = scores[0] = 20;
  engine.run({{&sequence, &pruner, 1}});
  const StepStats& stats = engine.step.stats();
  // After layer 1: 0, 1, 2, 5, 6, 10, so that 5 and 6 are revived; after layer 2: 0, 5, 10.
  CHECK(counts(stats, &LayerStats::active) == Counts{11, 6, 3, 3});
  CHECK(counts(stats, &LayerStats::computed) == Counts{1, 3, 2, 2});
  CHECK(counts(stats, &LayerStats::revived) == Counts{0, 2, 0, 0});
  CHECK(counts(stats, &LayerStats::kept) == Counts{6, 3, 3, 3});
  CHECK(engine.script->active == std::vector<Position>{0, 5, 10});
  CHECK(engine.script->rows_right);
  CHECK(engine.script->feed_forward_rows == 3 + 2 + 2 + 1);
  CHECK(std::vector<Depth>(sequence.depths().begin(), sequence.depths().end()) ==
        std::vector<Depth>{4, 4, 2, 2, 1, 4, 2, 1, 1, 4, 4});
  CHECK(stats.aux_rows == 6);
}

TEST_CASE("layer: static pruning never revives") {
  Engine engine(4);
  Engine::Sequence sequence = engine.sequence();
  const Engine::Pruner pruner(StaticPruning(Schedule{{1, 0.5}, {2, 0.5}}));
  engine.run({{&sequence, &pruner, 10}});
  for (Index step = 1; step < 4; ++step) {
    engine.script->scores[static_cast<std::size_t>(4 + step)] = 50;
    engine.run({{&sequence, &pruner, 1}});
    CHECK(counts(engine.step.stats(), &LayerStats::active) == Counts{10 + step, 5 + step, 3 + step, 3 + step});
    CHECK(engine.step.stats().revived() == 0);
    CHECK(engine.step.stats().computed() == 4);
  }
}

TEST_CASE("layer: without pruning the first decode step after a pruned prefill revives everything") {
  Engine engine(4);
  Engine::Sequence sequence = engine.sequence();
  const Engine::Pruner pruner(PrefillOnly<KeepRatio>{KeepRatio(Schedule{{1, 0.5}, {2, 0.5}})});
  engine.run({{&sequence, &pruner, 10}});
  engine.run({{&sequence, &pruner, 1}});
  CHECK(counts(engine.step.stats(), &LayerStats::computed) == Counts{1, 6, 8, 8});
  CHECK(counts(engine.step.stats(), &LayerStats::revived) == Counts{0, 5, 2, 0});
  CHECK(engine.step.stats().aux_rows == 0);
  CHECK(engine.script->rows_right);
  engine.run({{&sequence, &pruner, 1}});
  CHECK(counts(engine.step.stats(), &LayerStats::computed) == Counts{1, 1, 1, 1});
}

TEST_CASE("layer: a sequence that is too short to be pruned asks for no scores, and revives nothing") {
  Engine engine(4);
  const Engine::Pruner pruner = make_pruner(
      Preset{.schedule = Schedule{{1, 0.5}, {2, 0.5}}, .decode_revived = 3, .first_revived = 9, .min_tokens = 10});
  Engine::Sequence sequence = engine.sequence();
  engine.run({{&sequence, &pruner, 8}});
  for (Index token = 8; token < 12; ++token) engine.run({{&sequence, &pruner, 1}});  // past the length, too
  CHECK(engine.script->scored_layer == -1);
  CHECK(sequence.aux().parked_rows() == 0);

  Engine::Sequence longer = engine.sequence();
  engine.run({{&longer, &pruner, 20}});
  CHECK(engine.script->scored_layer == 1);
  longer.truncate(8);
  CHECK(longer.aux().parked_rows() == 4);
  engine.run({{&longer, &pruner, 1}});
  CHECK(counts(engine.step.stats(), &LayerStats::computed) == Counts{1, 1, 1, 1});
  CHECK(longer.aux().parked_rows() == 4);
  engine.run({{&longer, &pruner, 1}});  // long enough again: revives 3
  CHECK(longer.aux().parked_rows() == 1);
  CHECK(engine.script->rows_right);
}

TEST_CASE("layer: the policy is asked after each layer but the last, with the facts of the sequence") {
  Engine engine(4);
  Engine::Sequence sequence = engine.sequence();
  std::vector<PrunePoint> points;
  const Engine::Pruner pruner([&points](const PrunePoint& point) {
    points.push_back(point);
    return Selection{.kind = Selection::Kind::top_k, .k = point.active_tokens - 1};
  });
  engine.run({{&sequence, &pruner, 8}});
  engine.run({{&sequence, &pruner, 2}});
  REQUIRE(points.size() == 6);
  for (std::size_t i = 0; i < points.size(); ++i) {
    const auto layer = static_cast<Index>(i % 3);
    const bool second = i >= 3;
    CHECK(points[i].layers_run == layer + 1);
    CHECK(points[i].layers == 4);
    CHECK(points[i].active_tokens == (second ? 10 : 8) - layer);
    CHECK(points[i].tokens == (second ? 10 : 8));
    CHECK(points[i].new_tokens == (second ? 2 : 8));
    CHECK(points[i].steps == (second ? 1 : 0));
  }
}

TEST_CASE("layer: the policy is told how many tokens decode steps brought after the last prompt") {
  Engine engine(2);
  Engine::Sequence sequence = engine.sequence();
  Index told = -1;
  const Engine::Pruner pruner([&told](const PrunePoint& point) {
    told = point.decoded_tokens;
    return Selection{};
  });
  const auto in_step_of = [&](Index new_tokens, bool more = false, Index outputs = 1) {
    engine.run({{&sequence, &pruner, new_tokens, more, outputs}});
    return told;
  };
  CHECK(in_step_of(4) == 0);
  for (Index step = 0; step < 3; ++step) CHECK(in_step_of(1) == step);
  CHECK(sequence.prompt_end() == 4);
  CHECK(in_step_of(3) == 3);  // a later turn
  for (Index step = 0; step < 3; ++step) CHECK(in_step_of(1) == step);
  in_step_of(1, true);  // one in chunks of one token each
  in_step_of(1);
  CHECK(sequence.prompt_end() == 15);
  for (Index step = 0; step < 3; ++step) CHECK(in_step_of(1) == step);
  sequence.truncate(16);  // the answer is another one from its second token on
  CHECK(in_step_of(1) == 1);
  sequence.erase(2, 6);  // a context shift
  CHECK(in_step_of(1) == 2);
  Engine::Sequence fork = sequence.fork(engine.context);
  CHECK(fork.prompt_end() == sequence.prompt_end());
  sequence.append_computed(2);
  CHECK(in_step_of(1) == 0);
  CHECK(in_step_of(3, false, 3) == 1);  // drafted tokens
  CHECK(in_step_of(1) == 4);
  CHECK(in_step_of(3, false, 2) == 5);  // a prompt
  CHECK(in_step_of(1) == 0);
}

TEST_CASE("layer: a batch gives each sequence its own selection and its own last row") {
  Engine engine(3);
  Engine::Sequence a = engine.sequence();
  Engine::Sequence b = engine.sequence();
  const Engine::Pruner prunes(KeepRatio(Schedule{{1, 0.25}}));
  const Engine::Pruner keeps{KeepAll()};
  const StepOutput<float> last = engine.run({{&a, &prunes, 8}, {&b, &keeps, 5}});
  CHECK(counts(engine.step.stats(), &LayerStats::active) == Counts{13, 7, 7});
  CHECK(a.aux().parked_rows() == 6);
  CHECK(b.aux().parked_rows() == 0);
  CHECK(last.rows.rows == 2);
  CHECK(std::vector<Index>(last.indptr.begin(), last.indptr.end()) == Counts{0, 1, 2});
  CHECK(last.of(0).row(0)[2] == 107);
  CHECK(last.of(1).row(0)[2] == 104);
  engine.run({{&b, &keeps, 1}, {&a, &keeps, 1}});
  CHECK(engine.step.stats().revived() == 6);
  CHECK(engine.script->rows_right);
}

/// Notes where the rows of each entry begin.
struct NotingFeedForward {
  std::vector<Counts>* calls;

  void feed_forward(cpu::Context&, std::span<const Index> row_indptr, RowsView<float> hidden) {
    CHECK(row_indptr.back() == hidden.rows);
    for (Index r = 0; r < hidden.rows; ++r) ++hidden.row(r)[1];
    calls->emplace_back(row_indptr.begin(), row_indptr.end());
  }
};

TEST_CASE("layer: a feed-forward that differs by request is told which rows are whose") {
  Engine engine(3);
  std::vector<Counts> calls;
  std::vector<LazyDecoderLayer<ScriptedAttention, NotingFeedForward>> layers;
  for (auto& layer : engine.layers)
    layers.emplace_back(ScriptedAttention(layer.attention()), NotingFeedForward{&calls});
  Engine::Sequence a = engine.sequence(), b = engine.sequence(), c = engine.sequence();
  const Engine::Pruner prunes(KeepRatio(Schedule{{1, 0.25}}));
  const Engine::Pruner keeps{KeepAll()};
  const auto run = [&](const std::vector<Engine::Entry>& entries) {
    calls.clear();
    engine.begin(entries);
    const Counts first(engine.step.row_indptr().begin(), engine.step.row_indptr().end());
    for (auto& layer : layers) layer.forward(engine.context, engine.step);
    const StepOutput<float> output = engine.step.end();
    CHECK(std::ranges::equal(engine.step.row_indptr(), output.indptr));
    CHECK(engine.script->rows_right);
    return first;
  };
  CHECK(run({{&a, &prunes, 8}, {&b, &keeps, 5}, {&c, &prunes, 4, /*more=*/true}}) == Counts{0, 8, 13, 16});
  CHECK(calls == std::vector<Counts>{{0, 2, 7, 7}, {0, 2, 7, 7}, {0, 1, 2, 2}});  // the chunk waits after layer 0
  CHECK(run({{&b, &keeps, 1}, {&a, &keeps, 1}, {&c, &keeps, 2}}) == Counts{0, 1, 2, 5});
  CHECK(calls == std::vector<Counts>{{0, 1, 8, 14}, {0, 1, 8, 14}, {0, 1, 2, 3}});  // all of them come back
}

TEST_CASE("layer: a step can be used again for a model of another hidden size") {
  Engine engine(2);
  Engine::Sequence narrow = engine.sequence();
  const Engine::Pruner pruner(KeepRatio(Schedule{{1, 0.5}}));
  engine.run({{&narrow, &pruner, 8}});
  Engine::Sequence wide(2, 7);
  const std::vector<Engine::Entry> entries{{&wide, &pruner, 4}};
  CHECK(engine.step.begin(engine.context, entries).width == 7);
  engine.step.abort();
  engine.run({{&wide, &pruner, 4}});
  CHECK(engine.step.hidden().width == 7);
  CHECK(engine.script->rows_right);
}

TEST_CASE("layer: gives its blocks out") {
  Script script;
  LazyDecoderLayer layer(ScriptedAttention{&script, 3}, ScriptedFeedForward{&script});
  CHECK(layer.attention().layer == 3);
  CHECK(layer.feed_forward().script == &script);
}

struct BothFeedForwards : NotingFeedForward {
  using NotingFeedForward::feed_forward;
  void feed_forward(cpu::Context&, RowsView<float>) {}
};

TEST_CASE("layer: of a block that offers both feed-forwards the one by request runs") {
  Engine engine(2);
  std::vector<Counts> calls;
  std::vector<LazyDecoderLayer<ScriptedAttention, BothFeedForwards>> layers;
  for (auto& layer : engine.layers) {
    layers.emplace_back(ScriptedAttention(layer.attention()), BothFeedForwards{{&calls}});
  }
  Engine::Sequence sequence = engine.sequence();
  const Engine::Pruner keeps{KeepAll()};
  engine.begin(std::vector<Engine::Entry>{{&sequence, &keeps, 5}});
  for (auto& layer : layers) layer.forward(engine.context, engine.step);
  engine.step.end();
  CHECK(calls == std::vector<Counts>{{0, 5}, {0, 1}});
}
