#include <cmath>

#include "bench/backend/cuda/support.cuh"

// Scores from the last token's query: K of the active tokens is read once. `group` query heads share a key head,
// `active` is in percent of the tokens.

namespace lazyllm::bench {
namespace {

template <class T>
struct Problem {
  explicit Problem(const benchmark::State& state)
      : heads(state.range(0)),
        head_dim(state.range(1)),
        kv_heads(heads / state.range(2)),
        tokens(state.range(4)),
        active(random_subset<Position>(tokens, tokens * state.range(3) / 100)),
        query_memory(stream.get(), heads * head_dim),
        key_memory(stream.get(), tokens * kv_heads * head_dim),
        scores(stream.get(), std::ssize(active)) {}

  QueryRows<T> queries() const {
    const float scale = 1 / std::sqrt(static_cast<float>(head_dim));
    return {query_memory.data(), heads * head_dim, head_dim, heads, head_dim, scale};
  }
  ContiguousKeys<T> key_view() const { return {key_memory.data(), kv_heads * head_dim, head_dim, kv_heads}; }
  Index bytes() const { return std::ssize(active) * kv_heads * head_dim * static_cast<Index>(sizeof(T)); }

  Stream stream;
  cuda::Context context{stream.get()};
  Index heads, head_dim, kv_heads, tokens;
  std::vector<Position> active;
  RandomMemory<T> query_memory, key_memory;
  RandomMemory<float> scores;
};

template <class T>
void score(benchmark::State& state) {
  Problem<T> problem(state);
  const std::vector<Position> limits{static_cast<Position>(problem.active.size())};
  const std::span<float> scores(problem.scores.data(), problem.active.size());
  time_calls(state, problem.stream.get(), [&] {
    attention_scores(problem.context, problem.queries(), 1, [&](Index) {
      return ScoreTask<ContiguousKeys<T>>{
          .limits = limits, .key_view = problem.key_view(), .keys = problem.active, .scores = scores};
    });
  });
  report_bytes(state, problem.bytes());
}

/// Adds up words, and keeps the sums only to have read them.
__global__ void read_words(const uint4* words, Index count, unsigned* sums) {
  unsigned sum = 0;
  const Index stride = Index{gridDim.x} * blockDim.x;
  const Index first = Index{blockIdx.x} * blockDim.x + threadIdx.x;
#pragma unroll 4
  for (Index i = first; i < count; i += stride) sum += words[i].x ^ words[i].y ^ words[i].z ^ words[i].w;
  sums[first] = sum;
}

/// Reads as many bytes of K as the active tokens have, in one stream.
template <class T>
void score_memory(benchmark::State& state) {
  Problem<T> problem(state);
  constexpr Index blocks = 1024;
  constexpr Index threads = 256;
  const RandomMemory<unsigned> sums(problem.stream.get(), blocks * threads);
  const auto* const words = reinterpret_cast<const uint4*>(problem.key_memory.data());
  const Index count = problem.bytes() / static_cast<Index>(sizeof(uint4));
  time_calls(state, problem.stream.get(), [&] {
    read_words<<<blocks, threads, 0, problem.stream.get()>>>(words, count, sums.data());
    cuda::detail::check(cudaGetLastError(), "read_words");
  });
  report_bytes(state, problem.bytes());
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"heads", "head_dim", "group", "active", "tokens"})->UseManualTime();
  for (const auto& [head_dim, group] : {std::pair{128, 1}, std::pair{128, 4}, std::pair{64, 8}}) {
    for (const std::int64_t active : {100, 50}) {
      for (const std::int64_t tokens : device_token_counts) bench->Args({32, head_dim, group, active, tokens});
    }
  }
}

BENCHMARK(score<bf16>)->Apply(shapes);
BENCHMARK(score_memory<bf16>)->Apply(shapes);

}  // namespace
}  // namespace lazyllm::bench
