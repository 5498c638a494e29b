#include <thrust/copy.h>
#include <thrust/iterator/counting_iterator.h>
#include <cub/device/device_radix_sort.cuh>

#include <array>

#include "bench/backend/cuda/support.cuh"

// Selection among random scores of `batch` sequences with `tokens` tokens each, until the host has the kept indices.
// `keep` is in percent of the tokens (top-k) or of the sum of the scores (top-p).

namespace lazyllm::bench {
namespace {

struct Problem {
  explicit Problem(const benchmark::State& state)
      : keep(static_cast<double>(state.range(0)) / 100),
        batch(state.range(1)),
        tokens(state.range(2)),
        count(keep_count(keep, tokens)),
        keys(random_subset<Position>(tokens, tokens)),
        scores(stream.get(), batch * tokens) {}

  Stream stream;
  cuda::Context context{stream.get()};
  double keep;
  Index batch, tokens, count;
  std::vector<Position> keys;
  RandomMemory<float> scores;
};

void select_with(benchmark::State& state, Problem& problem, const SelectionTask& task) {
  std::vector<SelectionTask> tasks(static_cast<std::size_t>(problem.batch), task);
  const float* scores = problem.scores.data();
  for (SelectionTask& each : tasks) {
    each.protect_from = problem.tokens - 1;
    each.keys = problem.keys;
    each.scores = {scores, problem.keys.size()};
    scores += problem.tokens;
  }
  KeptTokens kept;
  time_calls(state, problem.stream.get(),
             [&] { select_tokens(problem.context, std::span<const SelectionTask>(tasks), kept); });
  report_bytes(state, static_cast<Index>(problem.scores.bytes() + kept.indices.size() * sizeof(int)));
}

void select_top_k(benchmark::State& state) {
  Problem problem(state);
  select_with(state, problem, {.k = problem.count});
}

void select_top_p(benchmark::State& state) {
  Problem problem(state);
  select_with(state, problem, {.top_p = true, .p = problem.keep});
}

/// With CUB alone, one sequence after the other: all scores sorted with their indices, which is stable, then the first
/// indices sorted.
void select_top_k_plain(benchmark::State& state) {
  Problem problem(state);
  const cudaStream_t stream = problem.stream.get();
  const auto tokens = static_cast<int>(problem.tokens);
  const auto count = static_cast<int>(problem.count);
  const RandomMemory<float> sorted_scores(stream, problem.tokens);
  const RandomMemory<int> indices(stream, problem.tokens);
  const RandomMemory<int> sorted_indices(stream, problem.tokens);
  const RandomMemory<int> kept(stream, problem.tokens);
  thrust::copy_n(thrust::cuda::par_nosync.on(stream), thrust::counting_iterator<int>(0), tokens, indices.data());
  const auto sort_all = [&](void* scratch, std::size_t& bytes, const float* scores) {
    cuda::detail::check(
        cub::DeviceRadixSort::SortPairsDescending(scratch, bytes, scores, sorted_scores.data(), indices.data(),
                                                  sorted_indices.data(), tokens, 0, 32, stream),
        "SortPairsDescending");
  };
  const auto sort_kept = [&](void* scratch, std::size_t& bytes) {
    cuda::detail::check(cub::DeviceRadixSort::SortKeys(scratch, bytes, sorted_indices.data(), kept.data(), count, 0,
                                                       static_cast<int>(std::bit_width(problem.keys.size())), stream),
                        "SortKeys");
  };
  std::array<std::size_t, 2> bytes{};
  sort_all(nullptr, bytes[0], problem.scores.data());
  sort_kept(nullptr, bytes[1]);
  const cuda::detail::DeviceMemory scratch(stream, static_cast<Index>(std::max(bytes[0], bytes[1])));
  const cuda::detail::PinnedMemory host(stream, problem.batch * count * static_cast<Index>(sizeof(int)));
  time_calls(state, stream, [&] {
    for (Index s = 0; s < problem.batch; ++s) {
      sort_all(scratch.data(), bytes[0], problem.scores.data() + s * tokens);
      sort_kept(scratch.data(), bytes[1]);
      const std::size_t kept_bytes = static_cast<std::size_t>(count) * sizeof(int);
      copy_bytes(stream, host.data() + static_cast<std::size_t>(s) * kept_bytes, kept.data(), kept_bytes);
    }
    problem.context.synchronize();
  });
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"keep", "batch", "tokens"})->ArgsProduct({{30, 70}, {1, 8}, device_token_counts})->UseManualTime();
}

BENCHMARK(select_top_k)->Apply(sizes);
BENCHMARK(select_top_k_plain)->Apply(sizes);
BENCHMARK(select_top_p)->Apply(sizes);

}  // namespace
}  // namespace lazyllm::bench
