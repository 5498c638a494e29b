#include <doctest/doctest.h>

#include <functional>
#include <new>
#include <utility>
#include <vector>

#include "lazyllm/lazyllm.hpp"
#include "support/allocations.hpp"
#include "support/runs.hpp"
#include "support/tiny_model.hpp"

using namespace lazyllm;
using namespace lazyllm::test;

namespace {

using Pruner = TokenPruner<std::function<Selection(const PrunePoint&)>>;

const TinyModel the_model{{.layers = 5}, 11};

/// A small engine whose sequences park their rows in `Storage`.
template <class Storage>
struct Engine {
  using Sequence = lazyllm::Sequence<AuxCache<Storage>>;

  /// A sequence with the engine's K/V of it.
  struct Request {
    Sequence sequence;
    TinyCache<float> cache;
  };

  Engine() {
    for (Index layer = 0; layer < model.shape().layers; ++layer) {
      layers.emplace_back(TinyAttention<float>{&model, layer, &batch}, TinyFeedForward<float>{&model, layer});
    }
  }

  Request request() const {
    return {Sequence(model.shape().layers, AuxCache(Storage(model.shape().width()))),
            TinyCache<float>(model.shape(), 40)};
  }

  /// Appends `tokens` in one step.
  RowsView<const float> advance(Request& request, const Pruner& pruner, const std::vector<Index>& tokens) {
    batch.assign(1, &request.cache);
    const RowsView<float> hidden = step.begin(context, request.sequence, pruner, std::ssize(tokens));
    for (Index r = 0; r < hidden.rows; ++r) model.embed(tokens[static_cast<std::size_t>(r)], hidden.row(r));
    for (auto& layer : layers) layer.forward(context, step);
    return step.end();
  }

  /// The same; the logits after the last.
  Vector run(Request& request, const Pruner& pruner, const std::vector<Index>& tokens) {
    return model.logits(advance(request, pruner, tokens).row(0));
  }

  const TinyModel& model = the_model;
  cpu::Context context;
  TinyBatch<float> batch;
  std::vector<LazyDecoderLayer<TinyAttention<float>, TinyFeedForward<float>>> layers;
  Step<Sequence, Pruner> step;
};

const std::vector<std::vector<Index>> turns{{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8}, {9}, {7, 30}, {9}, {3}};

std::vector<Depth> depths(const auto& sequence) { return {sequence.depths().begin(), sequence.depths().end()}; }

/// Lets every allocation of every turn fail in turn, in an engine that has allocated nothing yet, and tries again: the
/// state must be a good one each time, and what comes out what came out without a failure. Returns the failures.
template <class Storage>
long fail_everywhere(const Pruner& pruner) {
  using TheEngine = Engine<Storage>;
  std::vector<Vector> expected;
  std::vector<std::vector<Depth>> expected_depths;
  {
    TheEngine engine;
    auto request = engine.request();
    for (const auto& tokens : turns) {
      expected.push_back(engine.run(request, pruner, tokens));
      expected_depths.push_back(depths(request.sequence));
    }
  }
  long failures = 0;
  for (std::size_t turn = 0; turn < turns.size(); ++turn) {
    const long stride = 7 - 6 * static_cast<long>(runs(1000) / 1000);  // sanitizers try fewer
    for (long allocation = 0;; allocation += stride) {
      CAPTURE(turn);
      CAPTURE(allocation);
      TheEngine engine;
      auto request = engine.request();
      for (std::size_t before = 0; before < turn; ++before) engine.run(request, pruner, turns[before]);
      const Index length = request.sequence.length();
      bool failed = false;
      fail_allocation_after(allocation);
      try {
        engine.advance(request, pruner, turns[turn]);
      } catch (const std::bad_alloc&) {
        failed = true;
      }
      fail_allocation_after(-1);
      if (!failed) break;  // it takes no more of them
      ++failures;
      CHECK_FALSE(engine.step.running());
      CHECK(request.sequence.length() <= length);
      Index parked = 0;
      for (const Depth depth : request.sequence.depths()) parked += depth < engine.model.shape().layers;
      CHECK(request.sequence.aux().parked_rows() == parked);
      // From where the sequence stands, or from its start, it goes on as if nothing had happened.
      std::size_t next = turn;
      if (request.sequence.length() < length) {
        request.sequence.clear();
        next = 0;
      }
      request.cache.truncate(request.sequence.length());
      bool equal = true;
      for (; next <= turn; ++next) {
        equal &= engine.run(request, pruner, turns[next]) == expected[next];
        equal &= depths(request.sequence) == expected_depths[next];
      }
      CHECK(equal);
    }
  }
  return failures;
}

template <class Storage>
void withstands_every_failure() {
  const Schedule schedule{{1, 0.6}, {2, 0.6}, {4, 0.5}};
  const std::vector<Pruner> pruners{
      Pruner(KeepAll()),
      Pruner(KeepRatio(schedule)),
      Pruner(KeepTopP(schedule), AttentionScore::parse("max:4+layers+pool:3")),
      Pruner(StaticPruning(schedule)),
      Pruner(RandomDrop(schedule, 3)),
      Pruner(ProtectFirst<KeepRatio>{KeepRatio(schedule), 2}, AttentionScore::parse("mean:3"))};
  for (std::size_t i = 0; i < pruners.size(); ++i) {
    CAPTURE(i);
    CHECK(fail_everywhere<Storage>(pruners[i]) > 20);
  }
}

}  // namespace

TEST_CASE("failing allocations: the n-th fails, whichever it is") {
  const auto allocate = [] { return std::vector<int>(100).size(); };
  fail_allocation_after(1);
  CHECK(allocate() == 100);
  CHECK_THROWS_AS(allocate(), std::bad_alloc);
  CHECK(allocate() == 100);
  fail_allocation_after(-1);
}

TEST_CASE("failing allocations: no step ends in a wrong state, dense storage") {
  withstands_every_failure<cpu::DenseStorage<float>>();
}

TEST_CASE("failing allocations: no step ends in a wrong state, pooled storage") {
  withstands_every_failure<cpu::PooledStorage<float>>();
}

TEST_CASE("failing allocations: a shared pool loses no row") {
  using Pool = RowPool<cpu::Context, float>;
  for (long allocation = 0;; ++allocation) {
    CAPTURE(allocation);
    cpu::Context context;
    Pool pool(3);
    std::vector<Index> rows(5), more(50);
    pool.acquire(context, rows);
    bool failed = false;
    fail_allocation_after(allocation);
    try {
      pool.acquire(context, more);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    fail_allocation_after(-1);
    if (!failed) {
      CHECK(allocation == 2);
      break;
    }
    CHECK(pool.rows_in_use() == 5);
    pool.acquire(context, more);
    CHECK(pool.rows_in_use() == 55);
    for (const auto& list : {rows, more}) {
      for (const Index row : list) pool.release(row);
    }
    CHECK(pool.rows_in_use() == 0);
  }
}
