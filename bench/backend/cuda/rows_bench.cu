#include <thrust/iterator/constant_iterator.h>
#include <cub/device/device_memcpy.cuh>

#include <array>

#include "bench/backend/cuda/support.cuh"

// Half of a batch's rows, chosen at random, copied together (gather) or back to their places (scatter), and two halves
// put together (merge).

namespace lazyllm::bench {
namespace {

template <class T>
struct Batch {
  explicit Batch(const benchmark::State& state)
      : tokens(state.range(1)),
        width(state.range(0)),
        all(stream.get(), tokens * width),
        some(stream.get(), tokens / 2 * width),
        others(stream.get(), tokens / 2 * width),
        chosen(random_subset<Index>(tokens, tokens / 2)),
        in_order(chosen.size()) {
    std::iota(in_order.begin(), in_order.end(), Index{0});
    for (Index i = 0; i < tokens; ++i) {
      if (!std::ranges::binary_search(chosen, i)) rest.push_back(i);
    }
  }

  Index bytes() const { return 2 * static_cast<Index>(some.bytes()); }
  RowsView<T> all_rows() { return {all.data(), tokens, width}; }
  RowsView<T> half(RandomMemory<T>& rows) { return {rows.data(), tokens / 2, width}; }

  void copy(RowsView<T> source, const std::vector<Index>& from, RowsView<T> target, const std::vector<Index>& to) {
    const RowCopy<T> copy{source, from, target, to};
    copy_rows(context, std::span<const RowCopy<T>>(&copy, 1));
  }

  Stream stream;
  cuda::Context context{stream.get()};
  Index tokens, width;
  RandomMemory<T> all, some, others;
  std::vector<Index> chosen, in_order, rest;
};

template <class T>
void gather(benchmark::State& state) {
  Batch<T> batch(state);
  time_calls(state, batch.stream.get(),
             [&] { batch.copy(batch.all_rows(), batch.chosen, batch.half(batch.some), batch.in_order); });
  report_bytes(state, batch.bytes());
}

template <class T>
void scatter(benchmark::State& state) {
  Batch<T> batch(state);
  time_calls(state, batch.stream.get(),
             [&] { batch.copy(batch.half(batch.some), batch.in_order, batch.all_rows(), batch.chosen); });
  report_bytes(state, batch.bytes());
}

template <class T>
void merge(benchmark::State& state) {
  Batch<T> batch(state);
  const std::array<RowCopy<T>, 2> copies{
      RowCopy<T>{batch.half(batch.some), batch.in_order, batch.all_rows(), batch.chosen},
      RowCopy<T>{batch.half(batch.others), batch.in_order, batch.all_rows(), batch.rest}};
  time_calls(state, batch.stream.get(), [&] { copy_rows(batch.context, std::span<const RowCopy<T>>(copies)); });
  report_bytes(state, 2 * batch.bytes());
}

/// Where one row is copied from and to.
using Places = std::pair<const void*, void*>;

/// The same copies by `cub::DeviceMemcpy::Batched`. The lists of places go to the device as those of the library do.
template <class T>
void copy_by_cub(benchmark::State& state, Batch<T>& batch, const std::vector<Places>& places, Index bytes) {
  const cudaStream_t stream = batch.stream.get();
  const Index list_bytes = std::ssize(places) * static_cast<Index>(sizeof(void*));
  const cuda::detail::DeviceMemory lists(stream, 2 * list_bytes);
  auto* const sources = cuda::detail::at<const void*>(lists.data(), 0);
  auto* const targets = cuda::detail::at<void*>(lists.data(), list_bytes);
  const thrust::constant_iterator<std::size_t> row_bytes(static_cast<std::size_t>(batch.width) * sizeof(T));
  const auto enqueue = [&](void* scratch, std::size_t& scratch_bytes) {
    cuda::detail::check(cub::DeviceMemcpy::Batched(scratch, scratch_bytes, sources, targets, row_bytes,
                                                   static_cast<std::uint32_t>(places.size()), stream),
                        "cub::DeviceMemcpy::Batched");
  };
  std::size_t scratch_bytes = 0;
  enqueue(nullptr, scratch_bytes);
  const cuda::detail::DeviceMemory scratch(stream, static_cast<Index>(scratch_bytes));
  time_calls(state, stream, [&] {
    batch.context.upload(lists.data(), 2 * list_bytes, [&](std::byte* host) {
      for (std::size_t i = 0; i < places.size(); ++i) {
        cuda::detail::at<const void*>(host, 0)[i] = places[i].first;
        cuda::detail::at<void*>(host, list_bytes)[i] = places[i].second;
      }
    });
    enqueue(scratch.data(), scratch_bytes);
  });
  report_bytes(state, bytes);
}

template <class T>
void gather_plain(benchmark::State& state) {
  Batch<T> batch(state);
  std::vector<Places> places;
  for (std::size_t i = 0; i < batch.chosen.size(); ++i) {
    places.emplace_back(batch.all_rows().row(batch.chosen[i]), batch.half(batch.some).row(batch.in_order[i]));
  }
  copy_by_cub(state, batch, places, batch.bytes());
}

template <class T>
void scatter_plain(benchmark::State& state) {
  Batch<T> batch(state);
  std::vector<Places> places;
  for (std::size_t i = 0; i < batch.chosen.size(); ++i) {
    places.emplace_back(batch.half(batch.some).row(batch.in_order[i]), batch.all_rows().row(batch.chosen[i]));
  }
  copy_by_cub(state, batch, places, batch.bytes());
}

/// One copy of as many bytes.
template <class T>
void gather_memory(benchmark::State& state) {
  Batch<T> batch(state);
  time_calls(state, batch.stream.get(),
             [&] { copy_bytes(batch.stream.get(), batch.some.data(), batch.all.data(), batch.some.bytes()); });
  report_bytes(state, batch.bytes());
}

template <class T>
void scatter_memory(benchmark::State& state) {
  Batch<T> batch(state);
  time_calls(state, batch.stream.get(),
             [&] { copy_bytes(batch.stream.get(), batch.all.data(), batch.some.data(), batch.some.bytes()); });
  report_bytes(state, batch.bytes());
}

template <class T>
void merge_memory(benchmark::State& state) {
  Batch<T> batch(state);
  RandomMemory<T> source(batch.stream.get(), batch.tokens * batch.width);
  time_calls(state, batch.stream.get(),
             [&] { copy_bytes(batch.stream.get(), batch.all.data(), source.data(), source.bytes()); });
  report_bytes(state, 2 * batch.bytes());
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"width", "tokens"})->ArgsProduct({{2048, 4096}, device_token_counts})->UseManualTime();
}

BENCHMARK(gather<bf16>)->Apply(sizes);
BENCHMARK(gather_plain<bf16>)->Apply(sizes);
BENCHMARK(gather_memory<bf16>)->Apply(sizes);
BENCHMARK(scatter<bf16>)->Apply(sizes);
BENCHMARK(scatter_plain<bf16>)->Apply(sizes);
BENCHMARK(scatter_memory<bf16>)->Apply(sizes);
BENCHMARK(merge<bf16>)->Apply(sizes);
BENCHMARK(merge_memory<bf16>)->Apply(sizes);

}  // namespace
}  // namespace lazyllm::bench
