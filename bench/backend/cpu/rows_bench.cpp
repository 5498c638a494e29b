#include <Eigen/Core>
#include <cstring>

#include "bench/support.hpp"
#include "lazyllm/lazyllm.hpp"

// Half of a batch's rows, chosen at random, copied together (gather) or back to their places (scatter; a merge is two).

namespace lazyllm::bench {
namespace {

template <class T>
struct Batch {
  explicit Batch(const benchmark::State& state)
      : tokens(state.range(1)),
        width(state.range(0)),
        all(random_values<T>(tokens * width)),
        some(static_cast<std::size_t>(tokens / 2 * width)),
        chosen(random_subset<Index>(tokens, tokens / 2)),
        in_order(chosen.size()) {
    std::iota(in_order.begin(), in_order.end(), Index{0});
  }

  Index bytes() const { return 2 * static_cast<Index>(some.size() * sizeof(T)); }
  RowsView<T> all_rows() { return {all.data(), tokens, width}; }
  RowsView<T> some_rows() { return {some.data(), tokens / 2, width}; }

  Index tokens, width;
  std::vector<T> all, some;
  std::vector<Index> chosen, in_order;
};

template <class T>
void gather(benchmark::State& state) {
  Batch<T> batch(state);
  cpu::Context context(static_cast<int>(state.range(2)));
  for (auto _ : state) {
    copy_rows(context, RowsView<const T>(batch.all_rows()), std::span<const Index>(batch.chosen), batch.some_rows(),
              std::span<const Index>(batch.in_order));
    benchmark::ClobberMemory();
  }
  report_bytes(state, batch.bytes());
}

template <class T>
void scatter(benchmark::State& state) {
  Batch<T> batch(state);
  cpu::Context context(static_cast<int>(state.range(2)));
  for (auto _ : state) {
    copy_rows(context, RowsView<const T>(batch.some_rows()), std::span<const Index>(batch.in_order), batch.all_rows(),
              std::span<const Index>(batch.chosen));
    benchmark::ClobberMemory();
  }
  report_bytes(state, batch.bytes());
}

/// One memcpy of as many bytes.
template <class T>
void gather_memory(benchmark::State& state) {
  Batch<T> batch(state);
  for (auto _ : state) {
    std::memcpy(batch.some.data(), batch.all.data(), batch.some.size() * sizeof(T));
    benchmark::ClobberMemory();
  }
  report_bytes(state, batch.bytes());
}

template <class T>
void scatter_memory(benchmark::State& state) {
  Batch<T> batch(state);
  for (auto _ : state) {
    std::memcpy(batch.all.data(), batch.some.data(), batch.some.size() * sizeof(T));
    benchmark::ClobberMemory();
  }
  report_bytes(state, batch.bytes());
}

void one_thread(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"width", "tokens", "threads"})->ArgsProduct({{768, 4096}, token_counts, {1}})->UseRealTime();
}

void one_and_two_threads(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"width", "tokens", "threads"})->ArgsProduct({{768, 4096}, token_counts, {1, 2}})->UseRealTime();
}

BENCHMARK(gather<float>)->Apply(one_and_two_threads);
BENCHMARK(gather<Eigen::bfloat16>)->Apply(one_and_two_threads);
BENCHMARK(gather_memory<float>)->Apply(one_thread);
BENCHMARK(gather_memory<Eigen::bfloat16>)->Apply(one_thread);
BENCHMARK(scatter<float>)->Apply(one_and_two_threads);
BENCHMARK(scatter<Eigen::bfloat16>)->Apply(one_and_two_threads);
BENCHMARK(scatter_memory<float>)->Apply(one_thread);
BENCHMARK(scatter_memory<Eigen::bfloat16>)->Apply(one_thread);

}  // namespace
}  // namespace lazyllm::bench
