#include "bench/backend/cuda/support.cuh"

// Half of the tokens, chosen at random, parked into the Aux Cache and revived out of it. Times exclude the way back.

namespace lazyllm::bench {
namespace {

template <class Storage>
struct Problem {
  explicit Problem(const benchmark::State& state)
      : width(state.range(0)),
        tokens(state.range(1)),
        rows(stream.get(), tokens * width),
        chosen(random_subset<Position>(tokens, tokens / 2)),
        chosen_rows(chosen.begin(), chosen.end()),
        cache(Storage(width)) {
    cache.reserve(context, tokens);
  }

  void park() {
    copies.clear();
    cache.acquire(context, chosen);
    cache.park(RowsView<const bf16>(hidden()), chosen_rows, copies);
    copy_rows(context, std::span<const RowCopy<bf16>>(copies));
  }
  void revive() {
    copies.clear();
    cache.revive(chosen, hidden(), chosen_rows, copies);
    copy_rows(context, std::span<const RowCopy<bf16>>(copies));
    for (const Position position : chosen) cache.forget(position);
  }
  RowsView<bf16> hidden() { return {rows.data(), tokens, width}; }
  Index bytes() const { return 2 * std::ssize(chosen) * width * static_cast<Index>(sizeof(bf16)); }

  Stream stream;
  cuda::Context context{stream.get()};
  Index width, tokens;
  RandomMemory<bf16> rows;
  std::vector<Position> chosen;
  std::vector<Index> chosen_rows;
  AuxCache<Storage> cache;
  std::vector<RowCopy<bf16>> copies;
};

/// Times `body` alone, while the stream still works on `way_back`: so the host enqueues ahead, as it does in a step.
template <class Storage, class WayBack, class Body>
void time_after(benchmark::State& state, Problem<Storage>& problem, const WayBack& way_back, const Body& body) {
  StreamTimer timer;
  const cudaStream_t stream = problem.stream.get();
  for (auto _ : state) {
    way_back();
    timer.start(stream);
    body();
    timer.stop(stream);
    state.SetIterationTime(timer.milliseconds() * 1e-3);
  }
  report_bytes(state, problem.bytes());
}

template <class Storage>
void park(benchmark::State& state) {
  Problem<Storage> problem(state);
  problem.park();
  time_after(
      state, problem, [&] { problem.revive(); }, [&] { problem.park(); });
}

template <class Storage>
void revive(benchmark::State& state) {
  Problem<Storage> problem(state);
  time_after(
      state, problem, [&] { problem.park(); }, [&] { problem.revive(); });
}

template <class Storage>
using OtherSide = std::conditional_t<std::is_same_v<Storage, cuda::PinnedStorage<bf16>>, cuda::detail::PinnedMemory,
                                     cuda::detail::DeviceMemory>;

/// One copy of as many bytes, to the same kind of memory.
template <class Storage>
void park_memory(benchmark::State& state) {
  Problem<Storage> problem(state);
  const OtherSide<Storage> cached(problem.stream.get(), problem.bytes() / 2);
  time_calls(state, problem.stream.get(), [&] {
    copy_bytes(problem.stream.get(), cached.data(), problem.rows.data(), static_cast<std::size_t>(cached.bytes()));
  });
  report_bytes(state, problem.bytes());
}

template <class Storage>
void revive_memory(benchmark::State& state) {
  Problem<Storage> problem(state);
  const OtherSide<Storage> cached(problem.stream.get(), problem.bytes() / 2);
  time_calls(state, problem.stream.get(), [&] {
    copy_bytes(problem.stream.get(), problem.rows.data(), cached.data(), static_cast<std::size_t>(cached.bytes()));
  });
  report_bytes(state, problem.bytes());
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"width", "tokens"})->ArgsProduct({{4096}, device_token_counts})->UseManualTime();
}

using Dense = cuda::OwnStorage<bf16>;
using Pooled = cuda::PooledStorage<bf16>;
using Pinned = cuda::PinnedStorage<bf16>;
BENCHMARK(park<Dense>)->Apply(sizes);
BENCHMARK(park<Pooled>)->Apply(sizes);
BENCHMARK(park<Pinned>)->Apply(sizes);
BENCHMARK(park_memory<Dense>)->Apply(sizes);
BENCHMARK(park_memory<Pinned>)->Apply(sizes);
BENCHMARK(revive<Dense>)->Apply(sizes);
BENCHMARK(revive<Pooled>)->Apply(sizes);
BENCHMARK(revive<Pinned>)->Apply(sizes);
BENCHMARK(revive_memory<Dense>)->Apply(sizes);
BENCHMARK(revive_memory<Pinned>)->Apply(sizes);

}  // namespace
}  // namespace lazyllm::bench
