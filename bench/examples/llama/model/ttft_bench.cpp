#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "bench/examples/llama/model/gemm_rate.hpp"
#include "bench/examples/llama/model/shapes.hpp"
#include "examples/llama/model/decoder.hpp"
#include "examples/llama/model/pruning_options.hpp"
#include "examples/llama/program/output_file.hpp"

namespace {

using namespace lazyllm;
using namespace lazyllm::llama;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string shape = "134m";
  Index prompt = 2000;
  PruningOptions pruning;
  std::string dtype = "bf16";
  int threads = 2;
  Index generate = 68;
  Index repeats = 5;
  std::string json;
};

/// Views into one block of random numbers, each weight at a place of its own, so that a large model needs no more
/// memory than its packed weights.
template <class T>
WeightSource random_weights(const ModelConfig& config) {
  const auto largest = static_cast<std::size_t>(config.width * std::max(config.vocab, config.ffn_width));
  auto block = std::make_shared<std::vector<T>>(2 * largest);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02F);
  std::ranges::generate(*block, [&] { return static_cast<T>(normal(random)); });
  return [block, largest](const std::string& name, const std::vector<Index>& shape) {
    const DType dtype = std::is_same_v<T, float> ? DType::f32 : DType::bf16;
    const std::size_t place = std::hash<std::string>()(name) % largest;
    return Tensor{dtype, shape, reinterpret_cast<const std::byte*>(block->data() + place)};
  };
}

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
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
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

/// Median over the runs.
template <class Value>
double median(const std::vector<std::array<Times, 3>>& runs, const Value& value) {
  std::vector<double> values;
  for (const auto& run : runs) values.push_back(value(run));
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

template <class T>
nlohmann::ordered_json run(const Options& options) {
  const ModelConfig config = shape_named(options.shape);
  const Model<T> model(config, random_weights<T>(config), options.threads);
  std::vector<TokenId> prompt(static_cast<std::size_t>(options.prompt));
  std::mt19937 random(2);
  for (TokenId& token : prompt) token = static_cast<TokenId>(random() % static_cast<unsigned>(config.vocab));

  using Pruner = TokenPruner<AnyPolicy>;
  const Index capacity = options.prompt + options.generate;
  DenseDecoder<T> dense(model, capacity, options.threads);
  LazyDecoder<T> keep_one(model, capacity, options.threads, Pruner(KeepAll()));
  LazyDecoder<T> lazy(model, capacity, options.threads, make_pruner(options.pruning, config.layers));
  const auto measure_all = [&] {
    return std::array{measure(dense, prompt, options.generate), measure(keep_one, prompt, options.generate),
                      measure(lazy, prompt, options.generate)};
  };
  measure_all();  // warm-up
  std::vector<std::array<Times, 3>> runs;
  double gemm = 0;
  for (Index i = 0; i < options.repeats; ++i) {
    gemm = std::max(gemm, gemm_rate(config, options.prompt, options.dtype == "bf16", options.threads));
    runs.push_back(measure_all());
  }
  constexpr std::size_t dense_run = 0;
  constexpr std::size_t keep_one_run = 1;
  constexpr std::size_t lazy_run = 2;
  const auto prefill = [&](std::size_t which) {
    return median(runs, [&](const auto& run) { return run[which].prefill_ms; });
  };
  const auto decode = [&](std::size_t which) {
    return median(runs, [&](const auto& run) { return run[which].decode_ms; });
  };
  const double dense_rate = runs[0][dense_run].operations / prefill(dense_run) * 1e3;
  return {
      {"shape", options.shape},
      {"dtype", options.dtype},
      {"threads", options.threads},
      {"prompt_tokens", options.prompt},
      {"schedule", options.pruning.schedule},
      {"repeats", options.repeats},
      {"dense_ms", prefill(dense_run)},
      {"lazy_ms", prefill(lazy_run)},
      {"speedup", median(runs, [](const auto& run) { return run[dense_run].prefill_ms / run[lazy_run].prefill_ms; })},
      {"ideal_speedup", runs[0][dense_run].operations / runs[0][lazy_run].operations},
      {"keep_one_ms", prefill(keep_one_run)},
      {"overhead_percent",
       median(runs,
              [](const auto& run) { return 100 * (run[keep_one_run].prefill_ms / run[dense_run].prefill_ms - 1); })},
      {"dense_gflops", dense_rate * 1e-9},
      {"gemm_gflops", gemm * 1e-9},
      {"dense_share_of_gemm_percent", 100 * dense_rate / gemm},
      {"generated_tokens", options.generate},
      {"dense_decode_ms", decode(dense_run)},
      {"lazy_decode_ms", decode(lazy_run)},
      {"dense_generation_ms", prefill(dense_run) + decode(dense_run)},
      {"lazy_generation_ms", prefill(lazy_run) + decode(lazy_run)},
      {"generation_speedup", median(runs, [](const auto& run) {
         return (run[dense_run].prefill_ms + run[dense_run].decode_ms) /
                (run[lazy_run].prefill_ms + run[lazy_run].decode_ms);
       })}};
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Times prefill and decode of a randomly initialised model: dense, through the library with everything kept, and "
      "with pruning, in turn.",
      "ttft_bench");
  app.add_option("--shape", options.shape, "134m, 1.1b or llama-2-7b")->capture_default_str();
  app.add_option("--prompt", options.prompt, "prompt tokens")->check(CLI::PositiveNumber)->capture_default_str();
  add_pruning_options(app, options.pruning);
  app.add_option("--dtype", options.dtype, "type of weights, K/V and hidden states")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "threads to compute with")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--generate", options.generate, "tokens to generate, at most as many as the prompt has")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--repeats", options.repeats, "runs of each; figures are medians")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--json", options.json, "write the figures to this file instead of the standard output");
  CLI11_PARSE(app, argc, argv);
  try {
    options.generate = std::min(options.generate, options.prompt);
    std::optional<OutputFile> file;
    if (!options.json.empty()) file.emplace(options.json);
    const auto report = options.dtype == "f32" ? run<float>(options) : run<Eigen::bfloat16>(options);
    if (file) {
      file->commit(report.dump(2) + "\n");
    } else {
      fmt::print("{}\n", report.dump(2));
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "ttft_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
