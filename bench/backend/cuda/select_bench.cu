#include <thrust/copy.h>
#include <thrust/iterator/counting_iterator.h>
#include <cub/device/device_radix_sort.cuh>

#include <array>

#include "bench/backend/cuda/support.cuh"

// Selection among random scores of `batch` sequences with `tokens` tokens each, until the host has the kept indices.
// `keep` is in percent of the tokens (by count) or of the scores' sum (by mass).

namespace lazyllm::bench {
namespace {

struct Problem {
  explicit Problem(const benchmark::State& state)
      : keep(static_cast<double>(state.range(0)) / 100),
        batch(state.range(1)),
        tokens(state.range(2)),
        count(keep_count(keep, tokens)),
        active(random_subset<Position>(tokens, tokens)),
        scores(stream.get(), batch * tokens) {}

  Stream stream;
  cuda::Context context{stream.get()};
  double keep;
  Index batch, tokens, count;
  std::vector<Position> active;
  RandomMemory<float> scores;
};

void select_with(benchmark::State& state, Problem& problem, const Selection& selection) {
  std::vector<SelectionTask> tasks;
  for (Index s = 0; s < problem.batch; ++s) {
    const std::span<float> scores(problem.scores.data() + s * problem.tokens, static_cast<std::size_t>(problem.tokens));
    tasks.push_back({selection, problem.tokens, problem.active, scores});
  }
  KeptTokens kept;
  time_calls(state, problem.stream.get(),
             [&] { benchmark::DoNotOptimize(select(problem.context, std::span<const SelectionTask>(tasks), kept)); });
  report_bytes(state, static_cast<Index>(problem.scores.bytes() + kept.indices.size() * sizeof(int)));
}

void select_count(benchmark::State& state) {
  Problem problem(state);
  select_with(state, problem, {.kind = Selection::Kind::top_k, .count = problem.count});
}

void select_mass(benchmark::State& state) {
  Problem problem(state);
  select_with(state, problem, {.kind = Selection::Kind::top_p, .mass = problem.keep});
}

/// With CUB alone, one sequence after the other: all scores sorted with their indices, which is stable, then the first
/// indices sorted.
void select_count_plain(benchmark::State& state) {
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
                                                       static_cast<int>(std::bit_width(problem.active.size())), stream),
                        "SortKeys");
  };
  std::array<std::size_t, 2> bytes{};
  sort_all(nullptr, bytes[0], problem.scores.data());
  sort_kept(nullptr, bytes[1]);
  const cuda::DeviceMemory scratch(stream, static_cast<Index>(std::max(bytes[0], bytes[1])));
  const cuda::PinnedMemory host(stream, problem.batch * count * static_cast<Index>(sizeof(int)));
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

BENCHMARK(select_count)->Apply(sizes);
BENCHMARK(select_count_plain)->Apply(sizes);
BENCHMARK(select_mass)->Apply(sizes);

}  // namespace
}  // namespace lazyllm::bench
