#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lazyllm/lazyllm.hpp"
#include "support/tiny_model.hpp"

using namespace lazyllm;
using namespace lazyllm::test;

namespace {

using Sequence = lazyllm::Sequence<AuxCache<cpu::PooledStorage<float>>>;
using Pruner = TokenPruner<std::function<Selection(const PrunePoint&)>>;

enum class Place { before_attention, after_attention, scores, feed_forward };

struct Failure {
  Index layer = -1;
  Place place = Place::before_attention;

  void at(Index now, Place where) const {
    if (now == layer && where == place) throw std::runtime_error("the host failed");
  }
};

struct FailingAttention : TinyAttention<float> {
  const Failure* failure;

  void attend(cpu::Context& context, const LayerPlan& plan, RowsView<float> hidden) {
    failure->at(layer, Place::before_attention);
    TinyAttention<float>::attend(context, plan, hidden);
    failure->at(layer, Place::after_attention);
  }
  QueryRows<float> queries(const LayerPlan& plan) const {
    failure->at(layer, Place::scores);
    return TinyAttention<float>::queries(plan);
  }
};

struct FailingFeedForward : TinyFeedForward<float> {
  const Failure* failure;

  void feed_forward(cpu::Context& context, RowsView<float> hidden) {
    TinyFeedForward<float>::feed_forward(context, hidden);
    failure->at(layer, Place::feed_forward);
  }
};

/// A sequence with the engine's K/V of it.
struct Request {
  Sequence sequence;
  TinyCache<float> cache;
};

struct Engine {
  Engine() {
    for (Index layer = 0; layer < model.shape().layers; ++layer) {
      layers.emplace_back(FailingAttention{{&model, layer, &batch}, &failure},
                          FailingFeedForward{{&model, layer}, &failure});
    }
  }

  Request request() const {
    return {Sequence(model.shape().layers, AuxCache(cpu::PooledStorage<float>(model.shape().width()))),
            TinyCache<float>(model.shape(), 40)};
  }
  Request fork(const Request& parent) { return {parent.sequence.fork(context), parent.cache}; }

  using Entries = std::vector<std::pair<Request*, const Pruner*>>;

  /// Appends `tokens` to each request in one step; the logits of each.
  std::vector<Vector> run(const Entries& requests, const std::vector<Index>& tokens) {
    std::vector<Step<Sequence, Pruner>::Entry> entries;
    batch.clear();
    for (const auto& [request, pruner] : requests) {
      entries.push_back({&request->sequence, pruner, std::ssize(tokens)});
      batch.push_back(&request->cache);
    }
    const RowsView<float> hidden = step.begin(context, entries);
    for (Index r = 0; r < hidden.rows; ++r) {
      model.embed(tokens[static_cast<std::size_t>(r) % tokens.size()], hidden.row(r));
    }
    for (auto& layer : layers) layer.forward(context, step);
    const RowsView<float> last = step.end();
    std::vector<Vector> logits;
    for (Index r = 0; r < last.rows; ++r) logits.push_back(model.logits(last.row(r)));
    return logits;
  }

  TinyModel model{{.layers = 5}, 11};
  cpu::Context context;
  Failure failure;
  TinyBatch<float> batch;
  std::vector<LazyDecoderLayer<FailingAttention, FailingFeedForward>> layers;
  Step<Sequence, Pruner> step;
};

const std::vector<std::vector<Index>> turns{{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8}, {9}, {7, 30}, {9}, {3}};

/// Whether a failure at `place` of `layer` comes after the step has revived tokens of the history: those for layer k
/// are revived between the scores and the feed-forward of layer k - 1.
bool revived_before(const StepStats& stats, Index layer, Place place) {
  const Index reached = layer + (place == Place::feed_forward ? 1 : 0);
  for (Index i = 0; i < std::min(reached + 1, std::ssize(stats.layers)); ++i) {
    if (stats.layers[static_cast<std::size_t>(i)].revived > 0) return true;
  }
  return false;
}

std::vector<Depth> depths(const Sequence& sequence) { return {sequence.depths().begin(), sequence.depths().end()}; }

struct Outcome {
  int restored = 0;
  int shortened = 0;
};

/// Lets the host fail at every place of every layer in every turn; each failure must leave the sequence as it was, or
/// shortened to the tokens before the first revived one, and trying again must end as if nothing had happened.
Outcome fail_everywhere(const Pruner& pruner) {
  Outcome outcome;
  Engine engine;
  Request request = engine.request();
  for (std::size_t turn = 0; turn < turns.size(); ++turn) {
    Request clean = engine.fork(request);
    const std::vector<Vector> expected = engine.run({{&clean, &pruner}}, turns[turn]);
    const StepStats stats = engine.step.stats();
    for (Index layer = 0; layer < 5; ++layer) {
      for (const Place place : {Place::before_attention, Place::after_attention, Place::scores, Place::feed_forward}) {
        CAPTURE(turn);
        CAPTURE(layer);
        CAPTURE(static_cast<int>(place));
        Request failing = engine.fork(request);
        engine.failure = {layer, place};
        bool failed = false;
        try {
          engine.run({{&failing, &pruner}}, turns[turn]);
        } catch (const std::runtime_error& error) {
          failed = std::string(error.what()) == "the host failed";
        }
        engine.failure = {};
        if (!failed) {
          CHECK(place == Place::scores);  // where nothing is pruned, no scores are computed
          continue;
        }
        CHECK_FALSE(engine.step.running());
        if (revived_before(stats, layer, place)) {
          ++outcome.shortened;
          Request prefix = engine.fork(request);
          prefix.sequence.truncate(failing.sequence.length());
          CHECK(failing.sequence.length() < request.sequence.length());
          CHECK(depths(failing.sequence) == depths(prefix.sequence));
          CHECK(failing.sequence.aux().parked_rows() == prefix.sequence.aux().parked_rows());
          for (Request* each : {&failing, &prefix}) each->cache.truncate(failing.sequence.length());
          CHECK(engine.run({{&failing, &pruner}}, {4, 2}) == engine.run({{&prefix, &pruner}}, {4, 2}));
          CHECK(depths(failing.sequence) == depths(prefix.sequence));
          failing.sequence.clear();
          CHECK(failing.sequence.steps() == 0);
          failing.cache.truncate(0);
          for (std::size_t before = 0; before < turn; ++before) engine.run({{&failing, &pruner}}, turns[before]);
        } else {
          ++outcome.restored;
          CHECK(depths(failing.sequence) == depths(request.sequence));
          CHECK(failing.sequence.steps() == request.sequence.steps());
          CHECK(failing.sequence.aux().parked_rows() == request.sequence.aux().parked_rows());
          failing.cache.truncate(request.sequence.length());
        }
        CHECK(engine.run({{&failing, &pruner}}, turns[turn]) == expected);
        CHECK(depths(failing.sequence) == depths(clean.sequence));
        CHECK(failing.cache.computed == clean.cache.computed);
      }
    }
    engine.run({{&request, &pruner}}, turns[turn]);
  }
  return outcome;
}

}  // namespace

TEST_CASE("a host that fails: dense") {
  const Outcome outcome = fail_everywhere(Pruner(KeepAll()));
  CHECK(outcome.restored == 5 * 5 * 3);
  CHECK(outcome.shortened == 0);
}

TEST_CASE("a host that fails: pruning without revival") {
  const Outcome outcome = fail_everywhere(Pruner(StaticPruning(Schedule{{1, 0.6}, {2, 0.6}, {4, 0.5}})));
  CHECK(outcome.restored == 5 * 5 * 3 + 3);
  CHECK(outcome.shortened == 0);
}

TEST_CASE("a host that fails: pruning with revivals") {
  const Outcome outcome = fail_everywhere(Pruner(KeepRatio(Schedule{{1, 0.6}, {2, 0.6}, {4, 0.5}})));
  CHECK(outcome.restored > 20);
  CHECK(outcome.shortened > 20);
}

TEST_CASE("a host that fails: in a batch, each sequence is restored or shortened by itself") {
  Engine engine;
  const Pruner reviving(PrefillOnly<KeepRatio>{KeepRatio(Schedule{{1, 0.5}})});
  const Pruner dense{KeepAll()};
  Request a = engine.request();
  Request b = engine.request();
  engine.run({{&a, &reviving}, {&b, &dense}}, turns[0]);
  REQUIRE(a.sequence.aux().parked_rows() == 6);
  const Request before = engine.fork(a);
  engine.failure = {3, Place::after_attention};
  CHECK_THROWS_AS(engine.run({{&a, &reviving}, {&b, &dense}}, turns[1]), std::runtime_error);
  Position first_parked = 0;
  while (!before.sequence.aux().holds(first_parked)) ++first_parked;
  CHECK(a.sequence.length() == first_parked);
  CHECK(b.sequence.length() == 12);
  CHECK(b.sequence.steps() == 1);
}
