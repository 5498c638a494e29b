#include <benchmark/benchmark.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#ifdef LLAMA_HAS_ONEDNN
#include <oneapi/dnnl/dnnl.hpp>
#endif

#include "examples/llama/kernels/cpu/attention_blocks.hpp"
#include "examples/llama/kernels/cpu/few_rows_attention.hpp"
#include "examples/llama/kernels/cpu/isa.hpp"
#include "examples/llama/kernels/cpu/large_pages.hpp"
#include "examples/llama/kernels/cpu/linear.hpp"
#include "examples/llama/kernels/cpu/pointwise.hpp"
#include "examples/llama/kernels/cpu/rotary.hpp"
#include "examples/llama/kernels/cpu/team.hpp"

// The kernels at the sizes of a 134M-parameter Llama (dim 768, ffn 2048, 12 heads of 64), on two threads. `flops` are
// floating-point operations per second; causal attention counts only the visible keys. Time is real time.

namespace llama {
namespace {

constexpr int threads = 2;
constexpr Index dim = 768, ffn = 2048, heads = 12, head_dim = 64;

/// Fills `values` with numbers of [-1, 1].
template <class T>
void randomize(std::span<T> values) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> numbers(-1, 1);
  for (T& value : values) value = static_cast<T>(numbers(random));
}

template <class T>
std::vector<T> random_values(Index count) {
  std::vector<T> made(static_cast<std::size_t>(count));
  randomize(std::span(made));
  return made;
}

/// Random values in the memory that the reference engine has for weights, K and V.
template <class T>
std::shared_ptr<T> random_large_page_values(Index count) {
  std::shared_ptr<T> made = large_page_array<T>(count, Pages::own);
  randomize(std::span(made.get(), static_cast<std::size_t>(count)));
  return made;
}

void count_flops(benchmark::State& state, double per_iteration) {
  state.counters["flops"] = benchmark::Counter(per_iteration, benchmark::Counter::kIsIterationInvariantRate);
}

template <class T>
Tensor tensor_of(const std::vector<T>& values, Index out, Index in) {
  return {std::is_same_v<T, float> ? DType::f32 : DType::bf16,
          {out, in},
          reinterpret_cast<const std::byte*>(values.data())};
}

template <class T>
void linear(benchmark::State& state) {
  const Index rows = state.range(0), in = state.range(1), out = state.range(2);
  const auto weights = random_values<T>(out * in);
  const Tensor tensor = tensor_of(weights, out, in);
  const HostLinear<T> layer(std::span(&tensor, 1), {}, threads);
  const auto x = random_values<T>(rows * in);
  std::vector<T> y(static_cast<std::size_t>(rows * out));
  lazyllm::cpu::Context context(threads);
  for (auto _ : state) layer.apply(context, RowsView<const T>(x.data(), rows, in), RowsView<T>(y.data(), rows, out));
  count_flops(state, 2.0 * static_cast<double>(rows * in * out));
}

/// Reads `words` and does nothing else, by the threads that the kernels for few rows have: OpenMP's would go on
/// spinning beside them.
void read_all(std::span<const std::uint64_t> words) {
  constexpr Index parts = 64 * threads;
  std::array<std::uint64_t, parts> sums{};
  const Index each = std::ssize(words) / parts;
  share_parts(threads, parts, 1, [&](Index first, Index last, int) {
    for (Index part = first; part < last; ++part) {
      sums[static_cast<std::size_t>(part)] = std::reduce(words.data() + part * each, words.data() + (part + 1) * each);
    }
  });
  benchmark::DoNotOptimize(sums);
}

/// Times `run(rows)`, which reads `bytes` that no cache holds. Each run is followed by a plain read of as many bytes by
/// the same threads from pages of the same size, and by `run(1)`: the rate of the memory may change from second to
/// second. Counters: bytes per second of `run`, called `name`, and of the plain `read`; `of_read`, the share of it;
/// `of_one_row`, the time of `rows` rows over that of one.
template <class Run>
void beside_plain_read(benchmark::State& state, Index rows, Index bytes, const char* name, const Run& run) {
  const Index word_count = bytes / static_cast<Index>(sizeof(std::uint64_t));
  const std::shared_ptr<std::uint64_t> memory = large_page_array<std::uint64_t>(word_count, Pages::own);
  const std::span plain(memory.get(), static_cast<std::size_t>(word_count));
  std::ranges::fill(plain, 1);  // memory that was never written is all one page
  double run_seconds = 0, read_seconds = 0, one_row_seconds = 0;
  const auto seconds = [](const auto& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  for (auto _ : state) {
    const double time = seconds([&] { run(rows); });
    read_seconds += seconds([&] { read_all(plain); });
    one_row_seconds += seconds([&] { run(1); });
    run_seconds += time;
    state.SetIterationTime(time);
  }
  const double all = static_cast<double>(bytes) * static_cast<double>(state.iterations());
  state.counters[name] = benchmark::Counter(all / run_seconds);
  state.counters["read"] = benchmark::Counter(all / read_seconds);
  state.counters["of_read"] = benchmark::Counter(read_seconds / run_seconds);
  state.counters["of_one_row"] = benchmark::Counter(run_seconds / one_row_seconds);
  state.SetLabel(best_isa());
}

/// Few rows times more weights than any cache holds, a layer after the other as a decode step has them.
template <class T, WeightFormat format>
void few_rows(benchmark::State& state) {
  const Index rows = state.range(0), in = state.range(1), out = state.range(2);
  const auto layer_bytes = in * out * (format == WeightFormat::int8 ? 1 : static_cast<Index>(sizeof(T)));
  const Index count = std::max<Index>(1, (Index{256} << 20) / layer_bytes);
  std::vector<HostLinear<T>> layers;
  {
    const auto weights = random_values<T>(out * in);
    const Tensor tensor = tensor_of(weights, out, in);
    for (Index i = 0; i < count; ++i) {
      layers.emplace_back(std::span(&tensor, 1), std::span<const Tensor>(), threads, format);
    }
  }
  const auto x = random_values<T>(rows * in);
  std::vector<T> y(static_cast<std::size_t>(rows * out));
  lazyllm::cpu::Context context(threads);
  beside_plain_read(state, rows, count * layer_bytes, "weights", [&](Index of) {
    for (const auto& layer : layers) {
      layer.apply(context, RowsView<const T>(x.data(), of, in), RowsView<T>(y.data(), of, out));
    }
  });
}

#ifdef LLAMA_HAS_ONEDNN
/// The library's own rate: one primitive, made for exactly these rows.
template <class T>
void onednn(benchmark::State& state) {
  omp_set_num_threads(threads);
  const Index rows = state.range(0), in = state.range(1), out = state.range(2);
  using dnnl::memory;
  const auto type = std::is_same_v<T, float> ? memory::data_type::f32 : memory::data_type::bf16;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const memory::desc x({rows, in}, type, memory::format_tag::ab);
  const memory::desc w({in, out}, type, memory::format_tag::any);
  const memory::desc y({rows, out}, type, memory::format_tag::ab);
#if DNNL_VERSION_MAJOR < 3
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(x, w, y), engine);
#else
  const dnnl::matmul::primitive_desc description(engine, x, w, y);
#endif
  auto x_values = random_values<T>(rows * in);
  auto w_values = random_values<T>(in * out);
  memory plain({{in, out}, type, memory::format_tag::ba}, engine, w_values.data());
  memory packed(description.weights_desc(), engine);
  dnnl::reorder(plain, packed).execute(stream, plain, packed);
  const std::unordered_map<int, memory> arguments{
      {DNNL_ARG_SRC, {x, engine, x_values.data()}}, {DNNL_ARG_WEIGHTS, packed}, {DNNL_ARG_DST, {y, engine}}};
  const dnnl::matmul product(description);
  for (auto _ : state) product.execute(stream, arguments);
  count_flops(state, 2.0 * static_cast<double>(rows * in * out));
}
#endif

/// Which kernel attends: the one for the number of rows, or the one of the two that is named.
enum class Kernel { usual, few_rows, blocks };

/// Causal attention of `rows` new tokens behind `history` cached ones, K and V by heads as the host has them.
template <class T, Kernel kernel>
void attend(benchmark::State& state) {
  const Index rows = state.range(0), history = state.range(1), kv_heads = state.range(2);
  const Index tokens = rows + history;
  const auto queries = random_values<T>(rows * dim);
  const auto keys = random_values<T>(tokens * kv_heads * head_dim);
  const auto values = random_values<T>(tokens * kv_heads * head_dim);
  std::vector<T> out(queries.size());
  std::vector<Position> positions(static_cast<std::size_t>(tokens)), limits(static_cast<std::size_t>(rows));
  std::iota(positions.begin(), positions.end(), 0);
  std::iota(limits.begin(), limits.end(), static_cast<Position>(history + 1));
  lazyllm::cpu::Context context(threads);
  const AttentionShape shape{heads, kv_heads, head_dim, 0.125f};
  const KeyValues<T> cache{keys.data(), values.data(), head_dim, tokens * head_dim};
  for (auto _ : state) {
    const RowsView<const T> from{queries.data(), rows, dim};
    const RowsView<T> to{out.data(), rows, dim};
    if constexpr (kernel == Kernel::few_rows) {
      few_rows_attention<T>(context, {shape, from, cache, positions, limits, to});
    } else if constexpr (kernel == Kernel::blocks) {
      attend_in_blocks<T>(context, {shape, from, cache, positions, limits, to}, BlockProducts::automatic);
    } else {
      attention<T>(context, shape, cache, positions, limits, from, to);
    }
  }
  const double visible = std::accumulate(limits.begin(), limits.end(), 0.0);
  count_flops(state, 4.0 * visible * static_cast<double>(dim));
}

/// Attention of few rows with the heads of SmolLM2 (3 query heads a key head) or Qwen2.5-0.5B (7), to `percent` % of
/// 4000 tokens, in so many layers that no cache holds their K/V.
template <class T>
void few_rows_layers_attend(benchmark::State& state) {
  constexpr Index tokens = 4000;
  const Index rows = state.range(0), group = state.range(1), percent = state.range(2);
  const Index layers = group == 3 ? 30 : 48;
  const Index kv_heads = group == 3 ? 3 : 2;
  const AttentionShape shape{group * kv_heads, kv_heads, head_dim, 0.125f};
  const Index layer_values = shape.kv_heads * tokens * head_dim;
  const auto keys = random_large_page_values<T>(layers * layer_values);
  const auto values = random_large_page_values<T>(layers * layer_values);
  const auto queries = random_values<T>(rows * shape.heads * head_dim);
  std::vector<T> out(queries.size());
  std::vector<Position> all(static_cast<std::size_t>(tokens)), positions;
  std::iota(all.begin(), all.end(), 0);
  std::sample(all.begin(), all.end(), std::back_inserter(positions), tokens * percent / 100, std::mt19937(1));
  const std::vector<Position> limits(static_cast<std::size_t>(rows), static_cast<Position>(positions.size()));
  lazyllm::cpu::Context context(threads);
  const Index bytes = 2 * layers * layer_values * static_cast<Index>(sizeof(T)) * percent / 100;
  beside_plain_read(state, rows, bytes, "key_values", [&](Index of) {
    for (Index layer = 0; layer < layers; ++layer) {
      const KeyValues<T> cache{keys.get() + layer * layer_values, values.get() + layer * layer_values, head_dim,
                               tokens * head_dim};
      attention<T>(context, shape, cache, positions, std::span(limits).first(static_cast<std::size_t>(of)),
                   {queries.data(), of, shape.heads * head_dim}, {out.data(), of, shape.heads * head_dim});
    }
  });
}

template <class T>
void norm(benchmark::State& state) {
  const Index rows = state.range(0);
  const auto x = random_values<T>(rows * dim);
  const auto weight = random_values<float>(dim);
  std::vector<T> out(x.size());
  lazyllm::cpu::Context context(threads);
  for (auto _ : state) rms_norm<T>(context, {x.data(), rows, dim}, weight, 1e-5f, {out.data(), rows, dim});
}

template <class T>
void rope(benchmark::State& state) {
  const Index rows = state.range(0);
  auto x = random_values<T>(rows * 3 * dim);
  RotaryTable table(head_dim, 10000, NoRopeScaling(), state.range(1) != 0);
  table.reserve(rows);
  std::vector<Position> positions(static_cast<std::size_t>(rows));
  std::iota(positions.begin(), positions.end(), 0);
  lazyllm::cpu::Context context(threads);
  for (auto _ : state) rotate<T>(context, positions, table.view(), {x.data(), rows, 2 * dim, 3 * dim});
}

template <class T>
void gated_unit(benchmark::State& state) {
  const Index rows = state.range(0);
  const auto x = random_values<T>(rows * 2 * ffn);
  std::vector<T> out(static_cast<std::size_t>(rows * ffn));
  lazyllm::cpu::Context context(threads);
  for (auto _ : state) swiglu<T>(context, {x.data(), rows, 2 * ffn}, {out.data(), rows, ffn});
}

void shapes(benchmark::internal::Benchmark* bench) {
  for (const Index rows : {1, 16, 64, 128, 256, 512, 1000}) bench->Args({rows, dim, ffn});
  for (const Index rows : {1, 7, 50, 1000}) bench->Args({rows, 4096, 11008});
  bench->UseRealTime()->MinTime(0.2)->ArgNames({"rows", "in", "out"});
}

/// The products of a decode step of SmolLM2-135M and Qwen2.5-0.5B: Q/K/V, gate and up, down, logits. The one behind
/// attention is left out: it is the smallest.
void few_rows_layers(benchmark::internal::Benchmark* bench) {
  for (const auto& [in, out] : {std::pair<Index, Index>{576, 960},
                                {576, 3072},
                                {1536, 576},
                                {576, 49152},
                                {896, 1152},
                                {896, 9728},
                                {4864, 896},
                                {896, 151936}}) {
    for (const Index rows : {1, 2, 4, 6, 9, 16, 32, 64}) bench->Args({rows, in, out});
  }
  bench->UseManualTime()->MinTime(0.2)->ArgNames({"rows", "in", "out"});
}

void few_rows_kept(benchmark::internal::Benchmark* bench) {
  for (const Index group : {3, 7}) {
    for (const Index percent : {100, 30}) {
      for (const Index rows : {1, 5, 9}) bench->Args({rows, group, percent});
    }
  }
  bench->UseManualTime()->MinTime(0.2)->ArgNames({"rows", "group", "percent"});
}

void few_rows_shapes(benchmark::internal::Benchmark* bench) {
  for (const Index kv_heads : {12, 3}) {
    for (const Index rows : {1, 2, 4, 8, 16, 32, 64}) bench->Args({rows, 4000, kv_heads});
  }
  bench->UseRealTime()->MinTime(0.2)->ArgNames({"rows", "history", "kv_heads"});
}

void attention_shapes(benchmark::internal::Benchmark* bench) {
  for (const Index kv_heads : {12, 3}) {
    for (const Index rows : {1000, 2000}) bench->Args({rows, 0, kv_heads});
    for (const Index rows : {1, 8, 100}) bench->Args({rows, 2000, kv_heads});
  }
  bench->UseRealTime()->MinTime(0.2)->ArgNames({"rows", "history", "kv_heads"});
}

BENCHMARK(few_rows<Eigen::bfloat16, WeightFormat::as_type>)->Name("few_rows<bf16>")->Apply(few_rows_layers);
BENCHMARK(few_rows<Eigen::bfloat16, WeightFormat::int8>)->Name("few_rows<int8>")->Apply(few_rows_layers);
BENCHMARK(few_rows<float, WeightFormat::as_type>)->Name("few_rows<f32>")->Apply(few_rows_layers);
BENCHMARK(few_rows_layers_attend<Eigen::bfloat16>)->Name("few_layers_attend<bf16>")->Apply(few_rows_kept);
BENCHMARK(few_rows_layers_attend<float>)->Name("few_layers_attend<f32>")->Apply(few_rows_kept);
BENCHMARK(linear<Eigen::bfloat16>)->Apply(shapes);
BENCHMARK(linear<float>)->Apply(shapes);
#ifdef LLAMA_HAS_ONEDNN
/// oneDNN multiplies bf16 with AVX-512 and better.
[[maybe_unused]] const bool has_bf16 = [] {
  if (!usable(Isa::avx512)) return false;
  benchmark::RegisterBenchmark("onednn<Eigen::bfloat16>", onednn<Eigen::bfloat16>)->Apply(shapes);
  return true;
}();
BENCHMARK(onednn<float>)->Apply(shapes);
#endif
BENCHMARK(attend<Eigen::bfloat16, Kernel::usual>)->Name("attend<bf16>")->Apply(attention_shapes);
BENCHMARK(attend<float, Kernel::usual>)->Name("attend<f32>")->Apply(attention_shapes);
BENCHMARK(attend<Eigen::bfloat16, Kernel::few_rows>)->Name("few_attend<bf16>")->Apply(few_rows_shapes);
BENCHMARK(attend<Eigen::bfloat16, Kernel::blocks>)->Name("few_attend<bf16>/blocks")->Apply(few_rows_shapes);
BENCHMARK(attend<float, Kernel::few_rows>)->Name("few_attend<f32>")->Apply(few_rows_shapes);
BENCHMARK(attend<float, Kernel::blocks>)->Name("few_attend<f32>/blocks")->Apply(few_rows_shapes);
BENCHMARK(norm<Eigen::bfloat16>)->Arg(1)->Arg(1000)->UseRealTime();
BENCHMARK(norm<float>)->Arg(1)->Arg(1000)->UseRealTime();
BENCHMARK(rope<Eigen::bfloat16>)->Args({1, 0})->Args({1000, 0})->Args({1000, 1})->UseRealTime();
BENCHMARK(rope<float>)->Args({1, 0})->Args({1000, 0})->Args({1000, 1})->UseRealTime();
BENCHMARK(gated_unit<Eigen::bfloat16>)->Arg(1)->Arg(1000)->UseRealTime();
BENCHMARK(gated_unit<float>)->Arg(1)->Arg(1000)->UseRealTime();

}  // namespace
}  // namespace llama
