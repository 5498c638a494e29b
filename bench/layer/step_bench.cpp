#include <Eigen/Core>
#include <chrono>
#include <functional>

#include "bench/support.hpp"
#include "lazyllm/lazyllm.hpp"

// What a step costs beside the host's own work: the blocks do nothing, and scores are copied from a table. 12 layers of
// hidden_size 768; `keep` is the percentage kept after layers 4, 7 and 10, where 100 stands for the dense policy.

namespace lazyllm::bench {
namespace {

using Storage = cpu::OwnStorage<Eigen::bfloat16>;
using RequestState = Sequence<AuxCache<Storage>>;
using Policy = std::function<Selection(const PrunePoint&)>;
using Pruner = TokenPruner<Policy>;
using RunningStep = Step<RequestState, Pruner>;

constexpr Index layers = 12, hidden_size = 768;

struct IdleBlock {
  void attend(cpu::Context&, const LayerPlan&, RowsView<Eigen::bfloat16>) {}
  void token_scores(cpu::Context&, const LayerPlan& plan, std::span<const ScoreWindow> windows) {
    for (const ScoreWindow& window : windows) {
      const Positions keys = plan.sequence(window.sequence).keys;
      for (std::size_t i = 0; i < keys.size(); ++i) {
        window.scores[i] = (*by_position)[static_cast<std::size_t>(keys[i])];
      }
    }
  }

  const std::vector<float>* by_position = nullptr;
};

struct Host {
  explicit Host(const benchmark::State& state)
      : tokens(state.range(1)),
        scores(random_values<float>(tokens + 1)),
        pruner(policy(static_cast<double>(state.range(0)) / 100)),
        sequence(layers, AuxCache<Storage>(Storage(hidden_size))),
        layer(IdleBlock{&scores}) {
    sequence.reserve(context, tokens + 1);
    step.reserve(context, {.tokens = tokens + 1, .rows = tokens + 1, .layers = layers, .hidden_size = hidden_size});
  }

  static Policy policy(double keep) {
    if (keep == 1) return KeepAll();
    return KeepRatio({{4, keep}, {7, keep}, {10, keep}});
  }

  void run(Index new_tokens) {
    const RunningStep::Entry entry{&sequence, &pruner, new_tokens};
    step.begin(context, std::span(&entry, 1));
    for (Index i = 0; i < layers; ++i) layer.forward(context, step);
    benchmark::DoNotOptimize(step.end().rows.data);
  }

  Index tokens;
  std::vector<float> scores;
  cpu::Context context;
  Pruner pruner;
  RequestState sequence;
  LazyDecoderLayer<IdleBlock> layer;
  RunningStep step;
};

void time_step(benchmark::State& state, Host& host, Index new_tokens) {
  const auto start = std::chrono::steady_clock::now();
  host.run(new_tokens);
  state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

void report_layer_time(benchmark::State& state) {
  using benchmark::Counter;
  state.counters["ns_per_layer"] = Counter(1e-9 * layers, Counter::kIsIterationInvariantRate | Counter::kInvert);
}

void prefill(benchmark::State& state) {
  Host host(state);
  for (auto _ : state) {
    time_step(state, host, host.tokens);
    host.sequence.clear();
  }
  report_layer_time(state);
}

/// One token after a prompt; the scores are the same in each step, so that nothing is revived.
void decode(benchmark::State& state) {
  Host host(state);
  host.run(host.tokens);
  for (auto _ : state) {
    time_step(state, host, 1);
    host.sequence.truncate(host.tokens);
  }
  report_layer_time(state);
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"keep", "tokens"})->ArgsProduct({{100, 50}, token_counts})->UseManualTime();
}

BENCHMARK(prefill)->Apply(sizes);
BENCHMARK(decode)->Apply(sizes);

}  // namespace
}  // namespace lazyllm::bench
