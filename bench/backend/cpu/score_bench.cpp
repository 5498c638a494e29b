#include <Eigen/Core>
#include <cmath>
#include <cstdint>

#include "bench/support.hpp"
#include "lazyllm/lazyllm.hpp"

// Scores from the last token's query: K of all tokens is read once. `group` query heads share a key head.

namespace lazyllm::bench {
namespace {

template <class T>
struct Problem {
  explicit Problem(const benchmark::State& state)
      : heads(state.range(0)),
        head_dim(state.range(1)),
        kv_heads(heads / state.range(2)),
        tokens(state.range(3)),
        query_data(random_values<T>(heads * head_dim)),
        key_data(random_values<T>(tokens * kv_heads * head_dim)),
        keys(random_subset<Position>(tokens, tokens)),
        scores(keys.size()) {}

  QueryRows<T> queries() const {
    const float scale = 1 / std::sqrt(static_cast<float>(head_dim));
    return {query_data.data(), heads * head_dim, head_dim, heads, head_dim, scale};
  }
  ContiguousKeys<T> key_view() const { return {key_data.data(), kv_heads * head_dim, head_dim, kv_heads}; }
  Index bytes() const { return static_cast<Index>(key_data.size() * sizeof(T)); }

  Index heads, head_dim, kv_heads, tokens;
  std::vector<T> query_data, key_data;
  std::vector<Position> keys;
  std::vector<float> scores;
};

template <class T>
void score(benchmark::State& state) {
  Problem<T> problem(state);
  cpu::Context context(static_cast<int>(state.range(4)));
  const std::vector<Position> limits{static_cast<Position>(problem.tokens)};
  for (auto _ : state) {
    attention_scores(context, problem.queries(), 1, [&](Index) {
      return ScoreTask<ContiguousKeys<T>>{
          .limits = limits, .key_view = problem.key_view(), .keys = problem.keys, .scores = problem.scores};
    });
    benchmark::ClobberMemory();
  }
  report_bytes(state, problem.bytes());
}

/// Equation 1 as it is written, head by head.
template <class T>
void score_plain(benchmark::State& state) {
  Problem<T> problem(state);
  const auto queries = problem.queries();
  const auto key_view = problem.key_view();
  std::vector<float> weights(problem.scores.size());
  for (auto _ : state) {
    std::fill(problem.scores.begin(), problem.scores.end(), 0.0F);
    for (Index head = 0; head < problem.heads; ++head) {
      float highest = -INFINITY;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const T* query = queries.query(0, head);
        const T* key = key_view.key(problem.keys[i], head / state.range(2));
        float dot = 0;
        for (Index j = 0; j < problem.head_dim; ++j) dot += static_cast<float>(query[j]) * static_cast<float>(key[j]);
        weights[i] = queries.scale * dot;
        highest = std::max(highest, weights[i]);
      }
      float sum = 0;
      for (float& weight : weights) sum += weight = std::exp(weight - highest);
      for (std::size_t i = 0; i < weights.size(); ++i) {
        problem.scores[i] += weights[i] / (sum * static_cast<float>(problem.heads));
      }
    }
    benchmark::ClobberMemory();
  }
  report_bytes(state, problem.bytes());
}

/// Reads K and adds up its words.
template <class T>
void score_memory(benchmark::State& state) {
  const Problem<T> problem(state);
  const auto* words = reinterpret_cast<const std::uint64_t*>(problem.key_data.data());
  const std::size_t count = problem.key_data.size() * sizeof(T) / sizeof(std::uint64_t);
  for (auto _ : state) benchmark::DoNotOptimize(std::accumulate(words, words + count, std::uint64_t{0}));
  report_bytes(state, problem.bytes());
}

template <class T>
void shapes(benchmark::internal::Benchmark* bench, const std::vector<std::int64_t>& threads) {
  bench->ArgNames({"heads", "head_dim", "group", "tokens", "threads"})->UseRealTime();
  for (const auto& [heads, head_dim] : {std::pair{12, 64}, std::pair{32, 128}}) {
    for (const Index group : {1, 4}) {
      for (const Index tokens : token_counts) {
        const Index bytes = heads / group * head_dim * tokens * static_cast<Index>(sizeof(T));
        if (bytes > Index{1} << 30) continue;  // 2 GiB of keys would not fit every machine
        for (const std::int64_t count : threads) bench->Args({heads, head_dim, group, tokens, count});
      }
    }
  }
}

template <class T>
void one_thread(benchmark::internal::Benchmark* bench) {
  shapes<T>(bench, {1});
}

template <class T>
void one_and_two_threads(benchmark::internal::Benchmark* bench) {
  shapes<T>(bench, {1, 2});
}

BENCHMARK(score<float>)->Apply(one_and_two_threads<float>);
BENCHMARK(score<Eigen::bfloat16>)->Apply(one_and_two_threads<Eigen::bfloat16>);
BENCHMARK(score_plain<float>)->Apply(one_thread<float>);
BENCHMARK(score_plain<Eigen::bfloat16>)->Apply(one_thread<Eigen::bfloat16>);
BENCHMARK(score_memory<float>)->Apply(one_thread<float>);
BENCHMARK(score_memory<Eigen::bfloat16>)->Apply(one_thread<Eigen::bfloat16>);

}  // namespace
}  // namespace lazyllm::bench
