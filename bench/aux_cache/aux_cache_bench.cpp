#include <Eigen/Core>
#include <chrono>
#include <cstring>

#include "bench/support.hpp"
#include "lazyllm/lazyllm.hpp"

// Half of the tokens, chosen at random, parked into the Aux Cache and revived out of it. Times exclude the way back.

namespace lazyllm::bench {
namespace {

template <class Storage>
struct Problem {
  using T = typename Storage::value_type;

  explicit Problem(const benchmark::State& state)
      : hidden_size(state.range(0)),
        tokens(state.range(1)),
        rows(random_values<T>(tokens * hidden_size)),
        chosen(random_subset<Position>(tokens, tokens / 2)),
        chosen_rows(chosen.begin(), chosen.end()),
        cache(Storage(hidden_size)) {
    cache.reserve(context, tokens);
  }

  void park() {
    copies.clear();
    cache.acquire(context, chosen);
    cache.park(hidden(), chosen_rows, copies);
    copy_rows(context, std::span<const RowCopy<T>>(copies));
  }
  void revive() {
    copies.clear();
    cache.revive(chosen, hidden(), chosen_rows, copies);
    copy_rows(context, std::span<const RowCopy<T>>(copies));
    for (const Position position : chosen) cache.forget(position);
  }
  RowsView<T> hidden() { return {rows.data(), tokens, hidden_size}; }
  Index bytes() const { return 2 * std::ssize(chosen) * hidden_size * static_cast<Index>(sizeof(T)); }

  Index hidden_size, tokens;
  std::vector<T> rows;
  std::vector<Position> chosen;
  std::vector<Index> chosen_rows;
  cpu::Context context;
  AuxCache<Storage> cache;
  std::vector<RowCopy<T>> copies;
};

template <class Body>
void time_iteration(benchmark::State& state, const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

template <class Storage>
void park(benchmark::State& state) {
  Problem<Storage> problem(state);
  for (auto _ : state) {
    time_iteration(state, [&] { problem.park(); });
    problem.revive();
  }
  report_bytes(state, problem.bytes());
}

template <class Storage>
void revive(benchmark::State& state) {
  Problem<Storage> problem(state);
  for (auto _ : state) {
    problem.park();
    time_iteration(state, [&] { problem.revive(); });
  }
  report_bytes(state, problem.bytes());
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"hidden_size", "tokens"})->ArgsProduct({{768, 4096}, token_counts})->UseManualTime();
}

using Dense = cpu::OwnStorage<Eigen::bfloat16>;
using Pooled = cpu::PooledStorage<Eigen::bfloat16>;
BENCHMARK(park<Dense>)->Apply(sizes);
BENCHMARK(park<Pooled>)->Apply(sizes);
BENCHMARK(revive<Dense>)->Apply(sizes);
BENCHMARK(revive<Pooled>)->Apply(sizes);

}  // namespace
}  // namespace lazyllm::bench
