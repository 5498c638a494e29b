#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/examples/llama/model/gemm_rate.hpp"
#include "bench/examples/llama/model/library_share.hpp"
#include "bench/examples/llama/model/random_weights.hpp"
#include "bench/examples/llama/model/shapes.hpp"
#include "examples/llama/files/output_file.hpp"
#include "examples/llama/kernels/cpu/isa.hpp"
#include "examples/llama/model/cpu.hpp"
#include "examples/llama/model/host_memory.hpp"
#include "examples/llama/program/brief_spinning.hpp"
#include "examples/llama/program/command_line.hpp"
#include "examples/llama/program/console.hpp"
#include "examples/llama/program/interleaved.hpp"
#include "examples/llama/program/model_files.hpp"
#include "examples/llama/program/pruning_options.hpp"
#include "examples/llama/program/timing.hpp"
#ifdef LLAMA_HAS_CUDA
#include "bench/examples/llama/model/device_report.hpp"
#include "bench/examples/llama/model/device_ttft.hpp"
#endif

namespace {

using namespace llama;

struct Options {
  std::string device = "cpu";
  std::string shape = "134m";
  std::vector<Index> prompts{2000};
  std::vector<Index> batches{1};
  PruningOptions pruning;
  std::vector<std::string> schedules;  // all that were given
  std::string dtype = "bf16";
  bool int8 = false;
  int threads = 2;
  Index generate = 68;
  Index repeats = 5;
  Index overhead_turns = 0;
  std::optional<double> seconds;
  std::string json;

  /// `pruning` with each of the schedules.
  std::vector<PruningOptions> prunings() const {
    std::vector<PruningOptions> all(std::max<std::size_t>(1, schedules.size()), pruning);
    for (std::size_t i = 0; i < schedules.size(); ++i) all[i].schedule = schedules[i];
    return all;
  }
};

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
void check_for_cpu(const Options& options) {
  if (options.schedules.size() > 1) fail("--schedule is given ", options.schedules.size(), " times, the CPU takes one");
  if (options.prompts.size() != 1) fail("--prompt has ", options.prompts.size(), " lengths, the CPU takes one");
  if (options.batches != std::vector<Index>{1}) fail("--batch: the CPU runs one sequence");
}

template <class T>
nlohmann::ordered_json run(const Options& options) {
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

using Save = std::function<void(const nlohmann::ordered_json&)>;

#ifdef LLAMA_HAS_CUDA
/// Of every prompt length with every batch size and every schedule; see `measure_cases`.
nlohmann::ordered_json run_on_device(const Options& options, const Save& save) {
  if (options.dtype != "bf16") fail("--dtype ", options.dtype, ": on a CUDA device it is bf16");
  const Clock::time_point start = Clock::now();
  const ModelConfig config = shape_named(options.shape);
  struct Case {
    DeviceCase what;
    lazyllm::TokenPruner<lazyllm::AnyPolicy> pruner;
  };
  std::vector<Case> cases;
  nlohmann::ordered_json entries = nlohmann::ordered_json::array();
  for (const Index prompt : options.prompts) {
    for (const Index batch : options.batches) {
      for (const PruningOptions& pruning : options.prunings()) {
        const PruningOptions whole = resolved(pruning, config.layers, widths_of(config));
        say_if_not_pruned(whole, prompt);
        const std::optional<Index> revived = whole.decode_revived;
        cases.push_back({{prompt, batch, std::min(options.generate, prompt), options.repeats},
                         make_pruner(whole, config.layers, widths_of(config))});
        entries.push_back({{"device", options.device},
                           {"gpu", ""},
                           {"shape", options.shape},
                           {"dtype", options.dtype},
                           {"schedule", pruning.schedule},
                           {"decode_revived", revived ? nlohmann::ordered_json(*revived) : nullptr},
                           {"prompt_tokens", prompt},
                           {"batch", batch}});
      }
    }
  }
  const std::string gpu = device_name();  // what is wrong with the options is found without a device
  for (auto& entry : entries) entry["gpu"] = gpu;
  std::optional<DeviceBench> bench;
  const auto time_left = [&] {
    return !options.seconds || std::chrono::duration<double>(Clock::now() - start).count() <= *options.seconds;
  };
  const auto measure_one = [&](std::size_t i) {
    try {
      if (!bench) bench.emplace(config, random_weights<Eigen::bfloat16>(config));
    } catch (const lazyllm::cuda_error& error) {
      throw std::runtime_error(error.what());  // weights for which there is no memory are no single case's
    }
    return report(cases[i].what, bench->measure(cases[i].what, cases[i].pruner), bench->weight_bytes());
  };
  return measure_cases(std::move(entries), time_left, measure_one, save);
}
#endif

nlohmann::ordered_json run(const Options& options, [[maybe_unused]] const Save& save) {
  if (options.device == "cpu") {
    check_for_cpu(options);
    const ModelConfig config = shape_named(options.shape);
    const Placement placement{.dtype = options.dtype, .int8 = options.int8};
    return with_memory_for_weights(config, placement, [&] {
      return options.dtype == "f32" ? run<float>(options) : run<Eigen::bfloat16>(options);
    });
  }
#ifdef LLAMA_HAS_CUDA
  if (options.int8) fail("--weights int8: only the CPU has it");
  return run_on_device(options, save);
#else
  fail("--device ", options.device,
       ": this build has no CUDA; configure one with cmake --preset cuda or -DLAZYLLM_CUDA=ON");
#endif
}

}  // namespace

int main(int argc, char** argv) {
  spin_briefly(argv);
  Options options;
  CLI::App app(
      "Times prefill and decode of a randomly initialised model: dense, through the library with everything kept, and "
      "with pruning, in turn.",
      "ttft_bench");
  app.add_option("--device", options.device, "where to compute")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--shape", options.shape, "134m, smollm2, qwen2.5-0.5b, 1.1b, llama-2-7b or llama-3-8b")
      ->capture_default_str();
  constexpr Index max_tokens = Index{1} << 24;
  add_numbers(app, "--prompt", options.prompts, "prompt tokens; on a CUDA device several lengths, one after the other",
              {1, max_tokens});
  add_numbers(app, "--batch", options.batches, "sequences at once, on a CUDA device; several one after the other",
              {1, max_tokens});
  add_pruning_options(app, options.pruning);
  // On a CUDA device it may be repeated; `results` has all of them.
  const CLI::Option* const schedule = app.get_option("--schedule")->take_last();
  app.add_option("--dtype", options.dtype, "type of weights, K/V and hidden states")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  add_weights_option(app, options.int8);
  add_number(app, "--threads", options.threads, "threads to compute with", {1, 1024});
  add_number(app, "--generate", options.generate, "tokens to generate, at most as many as the prompt has",
             {1, max_tokens});
  add_number(app, "--repeats", options.repeats,
             "runs of each; figures are medians; on a CUDA device short prefills have more", {1, max_tokens});
  add_number(app, "--overhead-turns", options.overhead_turns,
             "further turns of dense and keep 1 alone, for their small difference, on the CPU", {0, max_tokens});
  add_number(app, "--seconds", options.seconds,
             "start no new case after so many seconds, and name those left out; on a CUDA device", {.least = 0});
  add_path(app, "--json", options.json,
           "write the figures to this file instead of the standard output; on a CUDA device after each case");
  app.footer("On a CUDA device --schedule can be repeated: the weights are loaded once for all cases.");
  return run_program(app, argc, argv, [&] {
    options.schedules = schedule->results();
    std::optional<OutputFile> file;
    for (const PruningOptions& pruning : options.prunings()) {
      check_apart({{"--json", options.json}}, {{"--schedule", preset_file_of(pruning)}});
    }
    if (!options.json.empty()) file.emplace(options.json);
    const auto save = [&](const nlohmann::ordered_json& report) {
      if (file) file->commit(report.dump(2) + "\n");
    };
    const auto report = run(options, save);
    save(report);
    if (!file) print("{}\n", report.dump(2));
  });
}
