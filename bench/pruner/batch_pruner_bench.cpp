#include <algorithm>

#include "bench/support.hpp"
#include "lazyllm/lazyllm.hpp"

// Scores of a batch pooled over 15 tokens, and half of the tokens of each sequence kept. The block copies its scores
// from a table.

namespace lazyllm::bench {
namespace {

using Pruner = TokenPruner<KeepAll>;
using Request = detail::PruneRequest<Pruner>;

struct Block {
  void token_scores(cpu::Context&, const LayerPlan& plan, std::span<const ScoreWindow> windows) {
    for (const ScoreWindow& window : windows) {
      const auto first = plan.key_indptr()[static_cast<std::size_t>(window.sequence)];
      std::copy_n(scores.begin() + first, window.scores.size(), window.scores.begin());
    }
  }

  std::vector<float> scores;
};

struct Problem {
  Problem(Index sequences, Index tokens) : block{random_values<float>(sequences * tokens)} {
    const std::vector<DensePlan::Extent> extents(static_cast<std::size_t>(sequences), {.new_tokens = tokens});
    dense.start(extents);
    for (Index s = 0; s < sequences; ++s) {
      requests.push_back({.score = &pruner.score(),
                          .sequence = s,
                          .new_tokens = tokens,
                          .selection = {.kind = Selection::Kind::top_k, .k = tokens / 2}});
    }
  }

  void prune() {
    const LayerPlan plan = dense.layer(0, 2);
    batch.score(context, block, plan, std::span<const Request>(requests));
    batch.begin_prune(context, plan, std::span<const Request>(requests), [](Index, Position) { return false; });
    batch.end_prune(context);
    benchmark::DoNotOptimize(batch.kept(0).data());
  }

  cpu::Context context;
  Block block;
  DensePlan dense;
  Pruner pruner{KeepAll(), {.pooling = 15}};
  std::vector<Request> requests;
  detail::BatchPruner<cpu::Context, Pruner> batch;
};

void prune(benchmark::State& state) {
  Problem problem(state.range(0), state.range(1));
  for (auto _ : state) problem.prune();
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"sequences", "tokens"})->ArgsProduct({{1, 8}, token_counts})->UseRealTime();
}

BENCHMARK(prune)->Apply(sizes);

}  // namespace
}  // namespace lazyllm::bench
