#include <functional>
#include <utility>

#include "bench/support.hpp"
#include "lazyllm/lazyllm.hpp"

// Selection among random scores. `keep` is in percent of the tokens (top-k) or of the scores' sum (top-p).

namespace lazyllm::bench {
namespace {

struct Problem {
  explicit Problem(const benchmark::State& state)
      : tokens(state.range(1)),
        share(static_cast<double>(state.range(0)) / 100),
        count(keep_count(share, tokens)),
        pool(random_values<float>(1 << 20)),
        scores(static_cast<std::size_t>(tokens)),
        keys(random_subset<Position>(tokens, tokens)) {
    kept.reserve(scores.size());
  }

  /// Scores that the processor has not seen lately: else it learns the outcome of every comparison by heart.
  void next_scores() {
    offset = (offset + 4099) % (std::ssize(pool) - tokens);
    std::copy_n(pool.begin() + offset, tokens, scores.begin());
  }

  Index tokens;
  double share;
  Index count;
  std::vector<float> pool;
  Index offset = 0;
  std::vector<float> scores;
  std::vector<Position> keys;
  std::vector<Index> kept;
};

void select_with(benchmark::State& state, Problem& problem, SelectionTask task) {
  cpu::Context context;
  KeptTokens kept;
  task.protect_from = problem.tokens - 1;
  task.keys = problem.keys;
  task.scores = problem.scores;
  for (auto _ : state) {
    problem.next_scores();
    select_tokens(context, std::span<const SelectionTask>(&task, 1), kept);
    benchmark::DoNotOptimize(kept.indices.data());
  }
  report_bytes(state, static_cast<Index>(problem.scores.size() * sizeof(float) + kept.indices.size() * sizeof(Index)));
}

void select_top_k(benchmark::State& state) {
  Problem problem(state);
  select_with(state, problem, {.k = problem.count});
}

void select_top_p(benchmark::State& state) {
  Problem problem(state);
  select_with(state, problem, {.top_p = true, .p = problem.share});
}

/// Pairs of score and index through std::nth_element, then the kept indices in order.
void select_top_k_plain(benchmark::State& state) {
  Problem problem(state);
  std::vector<std::pair<float, Index>> pairs(problem.scores.size());
  for (auto _ : state) {
    problem.next_scores();
    for (std::size_t i = 0; i < pairs.size(); ++i) pairs[i] = {-problem.scores[i], static_cast<Index>(i)};
    std::nth_element(pairs.begin(), pairs.begin() + (problem.count - 1), pairs.end());
    problem.kept.clear();
    for (Index i = 0; i < problem.count; ++i) problem.kept.push_back(pairs[static_cast<std::size_t>(i)].second);
    std::sort(problem.kept.begin(), problem.kept.end());
    benchmark::DoNotOptimize(problem.kept.data());
  }
}

/// std::nth_element of the scores alone, which finds the threshold only.
void select_top_k_threshold(benchmark::State& state) {
  Problem problem(state);
  std::vector<float>& scores = problem.scores;
  for (auto _ : state) {
    problem.next_scores();
    std::nth_element(scores.begin(), scores.begin() + (problem.count - 1), scores.end(), std::greater<>());
    benchmark::DoNotOptimize(scores.data());
  }
}

/// All pairs sorted, the first ones kept until they hold the share.
void select_top_p_plain(benchmark::State& state) {
  Problem problem(state);
  std::vector<std::pair<float, Index>> pairs(problem.scores.size());
  for (auto _ : state) {
    problem.next_scores();
    double total = 0;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      pairs[i] = {-problem.scores[i], static_cast<Index>(i)};
      total += problem.scores[i];
    }
    std::sort(pairs.begin(), pairs.end());
    problem.kept.clear();
    double held = 0;
    for (std::size_t i = 0; held < problem.share * total; ++i) {
      held -= pairs[i].first;
      problem.kept.push_back(pairs[i].second);
    }
    std::sort(problem.kept.begin(), problem.kept.end());
    benchmark::DoNotOptimize(problem.kept.data());
  }
}

void pool(benchmark::State& state) {
  cpu::Context context;
  const std::vector<float> scores = random_values<float>(state.range(1));
  std::vector<float> pooled(scores.size());
  const PoolTask task{scores, pooled, state.range(0)};
  for (auto _ : state) {
    pool_scores(context, std::span<const PoolTask>(&task, 1));
    benchmark::DoNotOptimize(pooled.data());
  }
  report_bytes(state, 2 * static_cast<Index>(scores.size() * sizeof(float)));
}

/// The highest of every window, one after the other.
void pool_plain(benchmark::State& state) {
  const std::vector<float> scores = random_values<float>(state.range(1));
  std::vector<float> pooled(scores.size());
  const Index half = state.range(0) / 2;
  for (auto _ : state) {
    for (Index i = 0; i < std::ssize(scores); ++i) {
      const auto first = scores.begin() + std::max<Index>(0, i - half);
      const auto last = scores.begin() + std::min<Index>(std::ssize(scores), i + half + 1);
      pooled[static_cast<std::size_t>(i)] = *std::max_element(first, last);
    }
    benchmark::DoNotOptimize(pooled.data());
  }
}

void keeps(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"keep", "tokens"})->ArgsProduct({{10, 50, 70}, token_counts})->UseRealTime();
}

void windows(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"window", "tokens"})->ArgsProduct({{5, 33}, token_counts})->UseRealTime();
}

BENCHMARK(select_top_k)->Apply(keeps);
BENCHMARK(select_top_k_plain)->Apply(keeps);
BENCHMARK(select_top_k_threshold)->Apply(keeps);
BENCHMARK(select_top_p)->Apply(keeps);
BENCHMARK(select_top_p_plain)->Apply(keeps);
BENCHMARK(pool)->Apply(windows);
BENCHMARK(pool_plain)->Apply(windows);

}  // namespace
}  // namespace lazyllm::bench
