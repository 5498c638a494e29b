#include "bench/examples/llama/model/cpu_ttft.hpp"

#include <algorithm>
#include <iterator>
#include <random>
#include <span>
#include <tuple>
#include <vector>

#include "bench/examples/llama/model/gemm_rate.hpp"
#include "bench/examples/llama/model/library_share.hpp"
#include "bench/examples/llama/model/random_weights.hpp"
#include "bench/examples/llama/model/shapes.hpp"
#include "examples/llama/kernels/cpu/isa.hpp"
#include "examples/llama/model/cpu.hpp"
#include "examples/llama/model/host_memory.hpp"
#include "examples/llama/program/interleaved.hpp"
#include "examples/llama/program/timing.hpp"

namespace llama {
namespace {

struct Times {
  double prefill_ms = 0;
  double decode_ms = 0;   // of all tokens after the first
  double operations = 0;  // of the prefill
};

template <class Decoder>
Times measure(Decoder& decoder, const std::vector<TokenId>& prompt, Index generate) {
  const auto timed = [](const auto& run) {
    const Clock::time_point start = Clock::now();
    run();
    return milliseconds_since(start);
  };
  decoder.clear();
  Times times;
  const double before = decoder.operations();
  times.prefill_ms = timed([&] { decoder.step(prompt); });
  times.operations = decoder.operations() - before;
  times.decode_ms = timed([&] {
    for (Index i = 1; i < generate; ++i) decoder.step(std::span(prompt).subspan(static_cast<std::size_t>(i), 1));
  });
  return times;
}

/// Median of `value(run)`.
template <class Value>
double median_of(const std::vector<Times>& runs, const Value& value) {
  std::vector<double> values;
  for (const Times& run : runs) values.push_back(value(run));
  return median(values);
}

std::vector<double> prefill_times(const std::vector<Times>& runs) {
  std::vector<double> times;
  for (const Times& run : runs) times.push_back(run.prefill_ms);
  return times;
}

/// Of each turn the time of two prefills over that of two others, which ran before and after them: a drift of the
/// machine's speed cancels out.
std::vector<double> ratios(const std::vector<double>& first, const std::vector<double>& second,
                           const std::vector<double>& before, const std::vector<double>& after) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < first.size(); ++i) {
    ratios.push_back((first[i] + second[i]) / (before[i] + after[i]));
  }
  return ratios;
}

/// Median of `value` of a run over that of the other's run of the same turn.
template <class Value>
double median_ratio(const std::vector<Times>& runs, const std::vector<Times>& others, const Value& value) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < runs.size(); ++i) ratios.push_back(value(runs[i]) / value(others[i]));
  return median(ratios);
}

/// Throws `std::invalid_argument` for options that only a CUDA device has.
void check_for_cpu(const TtftOptions& options) {
  if (options.schedules.size() > 1) fail("--schedule is given ", options.schedules.size(), " times, the CPU takes one");
  if (options.prompts.size() != 1) fail("--prompt has ", options.prompts.size(), " lengths, the CPU takes one");
  if (options.batches != std::vector<Index>{1}) fail("--batch: the CPU runs one sequence");
}

template <class T>
nlohmann::ordered_json run(const TtftOptions& options) {
  const Index prompt_length = options.prompts.front();
  const Index generate = std::min(options.generate, prompt_length);
  const ModelConfig config = shape_named(options.shape);
  say_if_not_pruned(resolved(options.pruning, config.layers, widths_of(config)), prompt_length);
  const WeightFormat format = options.int8 ? WeightFormat::int8 : WeightFormat::as_type;
  const Model<T> model(config, random_weights<T>(config), CpuExecution(options.threads, format));
  std::vector<TokenId> prompt(static_cast<std::size_t>(prompt_length));
  std::mt19937 random(2);
  for (TokenId& token : prompt) token = static_cast<TokenId>(random() % static_cast<unsigned>(config.vocab));

  using Pruner = lazyllm::TokenPruner<lazyllm::AnyPolicy>;
  const Index capacity = prompt_length + generate;
  DenseDecoder<T> dense(model, capacity, options.threads);
  LazyDecoder<T> keep_one(model, capacity, options.threads, Pruner(lazyllm::KeepAll()));
  LazyDecoder<T> lazy(model, capacity, options.threads, make_pruner(options.pruning, config.layers, widths_of(config)));
  LibraryShare<T> share(model, capacity, options.threads,
                        make_pruner(options.pruning, config.layers, widths_of(config)));
  const auto measured = [&](Index repeats) {
    return interleaved(
        repeats, [&] { return gemm_rate(config, prompt_length, options.dtype == "bf16", options.threads); },
        [&] { return measure(dense, prompt, generate); }, [&] { return measure(keep_one, prompt, 1).prefill_ms; },
        [&] { return measure(keep_one, prompt, 1).prefill_ms; }, [&] { return measure(dense, prompt, 1).prefill_ms; },
        [&] { return measure(lazy, prompt, generate); }, [&] { return share.percent(prompt); });
  };
  measured(1);  // warm-up
  const auto [gemm_rates, dense_runs, keep_one_ms, keep_one_again_ms, dense_again, lazy_runs, library_percents] =
      measured(options.repeats);
  std::vector<double> overheads = ratios(keep_one_ms, keep_one_again_ms, prefill_times(dense_runs), dense_again);
  const auto more = interleaved(
      options.overhead_turns, [&] { return measure(dense, prompt, 1).prefill_ms; },
      [&] { return measure(keep_one, prompt, 1).prefill_ms; }, [&] { return measure(keep_one, prompt, 1).prefill_ms; },
      [&] { return measure(dense, prompt, 1).prefill_ms; });
  std::ranges::copy(ratios(std::get<1>(more), std::get<2>(more), std::get<0>(more), std::get<3>(more)),
                    std::back_inserter(overheads));
  const double gemm = std::ranges::max(gemm_rates);
  const auto prefill = [](const Times& run) { return run.prefill_ms; };
  const auto decode = [](const Times& run) { return run.decode_ms; };
  const auto whole = [](const Times& run) { return run.prefill_ms + run.decode_ms; };
  const double dense_ms = median_of(dense_runs, prefill);
  const double lazy_ms = median_of(lazy_runs, prefill);
  const double dense_decode_ms = median_of(dense_runs, decode);
  const double lazy_decode_ms = median_of(lazy_runs, decode);
  const double dense_rate = dense_runs[0].operations / dense_ms * 1e3;
  return {{"device", "cpu"},
          {"isa", best_isa()},
          {"shape", options.shape},
          {"dtype", options.dtype},
          {"weights", options.int8 ? "int8" : options.dtype},
          {"threads", options.threads},
          {"prompt_tokens", prompt_length},
          {"schedule", options.pruning.schedule},
          {"repeats", options.repeats},
          {"dense_ms", dense_ms},
          {"lazy_ms", lazy_ms},
          {"speedup", median_ratio(dense_runs, lazy_runs, prefill)},
          {"ideal_speedup", dense_runs[0].operations / lazy_runs[0].operations},
          {"keep_one_ms", median(keep_one_ms)},
          {"overhead_turns", overheads.size()},
          {"overhead_percent", 100 * (median(overheads) - 1)},
          {"overhead_noise_percent", 100 * noise_of_median(overheads)},
          {"library_percent", median(library_percents)},
          {"dense_gflops", dense_rate * 1e-9},
          {"gemm_gflops", gemm * 1e-9},
          {"dense_share_of_gemm_percent", 100 * dense_rate / gemm},
          {"generated_tokens", generate},
          {"dense_decode_ms", dense_decode_ms},
          {"lazy_decode_ms", lazy_decode_ms},
          {"dense_generation_ms", dense_ms + dense_decode_ms},
          {"lazy_generation_ms", lazy_ms + lazy_decode_ms},
          {"generation_speedup", median_ratio(dense_runs, lazy_runs, whole)}};
}

}  // namespace

nlohmann::ordered_json run_on_cpu(const TtftOptions& options) {
  check_for_cpu(options);
  const ModelConfig config = shape_named(options.shape);
  const Placement placement{.dtype = options.dtype, .int8 = options.int8};
  return with_memory_for_weights(
      config, placement, [&] { return options.dtype == "f32" ? run<float>(options) : run<Eigen::bfloat16>(options); });
}

}  // namespace llama
