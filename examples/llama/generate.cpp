#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/checkpoint/json.hpp"
#include "examples/llama/files/input_file.hpp"
#include "examples/llama/files/output_file.hpp"
#include "examples/llama/files/printable.hpp"
#include "examples/llama/model/any_model.hpp"
#include "examples/llama/model/sampler.hpp"
#include "examples/llama/program/command_line.hpp"
#include "examples/llama/program/console.hpp"
#include "examples/llama/program/counted.hpp"
#include "examples/llama/program/generation.hpp"
#include "examples/llama/program/memory.hpp"
#include "examples/llama/program/model_files.hpp"
#include "examples/llama/program/model_options.hpp"
#include "examples/llama/program/progress.hpp"
#include "examples/llama/program/pruning_options.hpp"
#include "examples/llama/program/timing.hpp"
#include "examples/llama/report/report.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

namespace {

using namespace llama;
using Json = nlohmann::ordered_json;

struct Options {
  ModelOptions model;
  std::string prompt, prompt_file, token_ids;
  PruningOptions pruning;
  Index max_tokens = 64;
  Sampling sampling;
  bool compare = false;
  Index repeats = 3;
  std::string json, trace, logits, report;

  /// Throws `file_error` if an output would be written over another one, or over what is read.
  void check_outputs() const {
    std::vector<NamedFile> inputs = named_files("--model", model_files(model.path, model.tokenizer));
    inputs.push_back({"--prompt-file", prompt_file});
    inputs.push_back({"--token-ids", token_ids});
    inputs.push_back({"--schedule", schedule_file_of(pruning)});
    check_apart({{"--json", json}, {"--trace", trace}, {"--logits", logits}, {"--report", report}}, inputs);
  }
};

/// One generation, dense or lazy.
struct Run {
  std::vector<TokenId> tokens;
  std::string text;
  std::vector<double> step_ms;  // the first is the time to the first token
  std::vector<lazyllm::LayerStats> prefill_layers;
  double prefill_operations = 0;
  double prompt_computed_percent = 100;
  Index revived = 0;
  Index aux_bytes_peak = 0;
  Index kv_bytes = 0;
  std::vector<float> logits;
  Json trace = Json::array();
  std::vector<ActiveLayers> active_layers;  // of each step

  /// Time to generate the first `count` tokens.
  double ms(std::size_t count) const {
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += step_ms[i];
    return sum;
  }

  double decode_ms_per_token() const {
    return step_ms.size() < 2 ? 0 : (ms(step_ms.size()) - step_ms[0]) / static_cast<double>(step_ms.size() - 1);
  }
};

class Program {
 public:
  Program(const Options& options, const Checkpoint& checkpoint, const Tokenizer* tokenizer, std::vector<TokenId> prompt)
      : options_(options),
        tokenizer_(tokenizer),
        prompt_(std::move(prompt)),
        sampler_(options.sampling),
        pruner_(make_pruner(options.pruning, checkpoint.config().layers)),
        json_(open(options.json)),
        trace_(open(options.trace)),
        logits_(open(options.logits)),
        page_(open(options.report)),
        model_(with_memory_for_weights(checkpoint.config(), options.model.dtype,
                                       [&] {
                                         return open_model(
                                             checkpoint.config(), weights_of(checkpoint),
                                             {options.model.device, options.model.dtype, options.model.threads});
                                       })),
        stop_(stop_tokens(model_->config(), tokenizer)) {}

  void run() {
    const Index capacity = std::ssize(prompt_) + options_.max_tokens;
    const auto lazy = with_memory([&] { return model_->lazy(capacity, pruner_); });

    const PruningOptions pruning = resolved(options_.pruning, model_->config().layers);
    Json report = {{"model", options_.model.path},
                   {"device", options_.model.device},
                   {"dtype", options_.model.dtype},
                   {"threads", options_.model.threads},
                   {"schedule", pruning.schedule},
                   {"score", pruning.score.value()},
                   {"protect_first", pruning.protect_first.value()},
                   {"protect_last", pruning.protect_last.value()},
                   {"prompt_tokens", prompt_.size()},
                   {"max_tokens", options_.max_tokens},
                   {"temperature", options_.sampling.temperature},
                   {"top_p", options_.sampling.top_p},
                   {"seed", options_.sampling.seed}};
    if (options_.pruning.schedule != pruning.schedule) report["preset"] = options_.pruning.schedule;
    Run result;
    if (options_.compare) {
      result = compare(*with_memory([&] { return model_->dense(capacity); }), *lazy, report);
    } else {
      result = generate(*lazy, true);
      print_text("\n");
      report.update(to_json(result));
    }
    if (json_) json_->commit(json_text(report, 2) + "\n");
    if (trace_) trace_->commit(result.trace.dump() + "\n");
    if (logits_) {
      logits_->commit({reinterpret_cast<const char*>(result.logits.data()), result.logits.size() * sizeof(float)});
    }
    if (page_) {
      std::vector<TokenId> tokens = prompt_;
      tokens.insert(tokens.end(), result.tokens.begin(), result.tokens.end());
      page_->commit(report_page(
          {.tokens = tokens, .tokenizer = tokenizer_, .layers = model_->config().layers, .steps = result.active_layers},
          report));
    }
    // After the files: whoever reads this may be gone.
    if (options_.compare) {
      print_text(comparison_);
    } else {
      say("{}", figures_of("", result));
    }
  }

 private:
  /// Calls `work`, which makes a decoder; where memory ends, says what it needs.
  template <class Work>
  std::unique_ptr<AnyDecoder> with_memory(const Work& work) const {
    return with_memory_for_keys(model_->config(), options_.model.dtype, std::ssize(prompt_) + options_.max_tokens,
                                work);
  }

  static std::optional<OutputFile> open(const std::string& path) {
    return path.empty() ? std::nullopt : std::optional<OutputFile>(std::in_place, path);
  }

  /// Prompt and answer from an empty sequence on. Streams the text, or token ids without a tokenizer, if `stream`.
  Run generate(AnyDecoder& decoder, bool stream) {
    decoder.clear();
    Run run;
    run.kv_bytes = decoder.kv_bytes();
    Sampler sampler = sampler_;
    const double before = decoder.operations();
    Json active = Json::array();
    ActiveLayers active_layers;
    decoder.observe_layers([&](const lazyllm::LayerPlan& plan) {
      if (run.tokens.empty()) {
        status_.show(fmt::format("prefill layer {}/{}: {} rows", plan.layer() + 1, plan.layers(), plan.rows()));
        auto& layers = run.prefill_layers;
        if (!layers.empty()) layers.back().kept = std::ssize(plan.keys());
        layers.push_back({std::ssize(plan.keys()), plan.rows(), 0, std::ssize(plan.keys())});
      }
      if (!options_.trace.empty()) active.push_back(plan.keys());
      if (!options_.report.empty()) record(plan, active_layers);
    });
    const auto draw = [&](std::span<const float> logits) { return sampler.draw(logits); };
    const auto keep = [&](const GeneratedStep& step) {
      const bool prefill = run.tokens.empty();
      if (prefill) {
        status_.clear();
        run.prefill_operations = decoder.operations() - before;
      }
      run.step_ms.push_back(step.ms);
      run.tokens.push_back(step.token);
      if (!options_.logits.empty()) run.logits.insert(run.logits.end(), step.logits.begin(), step.logits.end());
      if (!options_.trace.empty()) {
        run.trace.push_back(
            {{"new_tokens", prefill ? prompt_.size() : 1}, {"active", std::exchange(active, Json::array())}});
      }
      run.active_layers.push_back(std::exchange(active_layers, {}));
      const lazyllm::StepStats stats = decoder.stats();
      run.revived += stats.revived();
      run.aux_bytes_peak = std::max(run.aux_bytes_peak, stats.aux_bytes);
      if (tokenizer_ == nullptr && stream) print("{} ", step.token);
      emit(run, step.text, stream);
    };
    emit(run, generate_tokens(decoder, prompt_, options_.max_tokens, stop_, tokenizer_, draw, keep), stream);
    decoder.observe_layers(nullptr);
    run.prompt_computed_percent = decoder.computed_percent(std::ssize(prompt_));
    return run;
  }

  static void emit(Run& run, const std::string& text, bool stream) {
    run.text += text;
    if (!stream) return;
    static const bool terminal = ::isatty(STDOUT_FILENO) == 1;
    print_text(terminal ? printable(text, Controls::lines) : text);
  }

  /// Dense and lazy in turn, so that a machine whose speed drifts treats both alike. Returns the lazy run.
  Run compare(AnyDecoder& dense_decoder, AnyDecoder& lazy_decoder, Json& report) {
    std::vector<Run> dense, lazy;
    for (Index i = 0; i < options_.repeats; ++i) {
      const bool stream = i == 0;
      if (stream) print_text("dense: ");
      dense.push_back(generate(dense_decoder, stream));
      if (stream) print_text("\nlazy:  ");
      lazy.push_back(generate(lazy_decoder, stream));
      if (stream) print_text("\n\n");
    }
    const auto ratio = [&](const auto& value) {
      std::vector<double> ratios;
      for (std::size_t i = 0; i < dense.size(); ++i) ratios.push_back(value(dense[i]) / value(lazy[i]));
      return median(ratios);
    };
    const auto [differ, _] = std::ranges::mismatch(dense[0].tokens, lazy[0].tokens);
    const std::size_t equal = static_cast<std::size_t>(differ - dense[0].tokens.begin());
    const std::size_t common = std::min(dense[0].tokens.size(), lazy[0].tokens.size());
    const double ttft_speedup = ratio([](const Run& run) { return run.step_ms[0]; });
    const double generation_speedup = ratio([&](const Run& run) { return run.ms(common); });
    const double ideal = dense[0].prefill_operations / lazy[0].prefill_operations;
    take_median_times(dense);
    take_median_times(lazy);
    report["repeats"] = options_.repeats;
    report["dense"] = to_json(dense[0]);
    report["lazy"] = to_json(lazy[0]);
    report["ttft_speedup"] = ttft_speedup;
    report["ideal_ttft_speedup"] = ideal;
    report["generation_speedup"] = generation_speedup;
    report["first_token_equal"] = equal > 0;
    report["equal_tokens"] = equal;

    comparison_ = fmt::format(
        "{}\n{}\nprompt computed: {:.1f} % of its token-layers\nequal tokens: the first {} of {}\n"
        "generation speedup: {:.2f}x over {}\n"
        "TTFT speedup: {:.2f}x (ideal by operation count {:.2f}x, median of {})\n",
        figures_of("dense: ", dense[0]), figures_of("lazy:  ", lazy[0]), lazy[0].prompt_computed_percent, equal, common,
        generation_speedup, counted(common, "token"), ttft_speedup, ideal, options_.repeats);
    return lazy[0];
  }

  /// Replaces the times of the first run by the medians over all of them; everything else is the same in all.
  static void take_median_times(std::vector<Run>& runs) {
    Run& first = runs.front();
    for (std::size_t step = 0; step < first.step_ms.size(); ++step) {
      std::vector<double> times;
      for (const Run& run : runs) times.push_back(run.step_ms[step]);
      first.step_ms[step] = median(times);
    }
  }

  static Json to_json(const Run& run) {
    Json layers = Json::array();
    for (const lazyllm::LayerStats& layer : run.prefill_layers) {
      layers.push_back({{"active", layer.active}, {"computed", layer.computed}, {"kept", layer.kept}});
    }
    return {{"tokens", run.tokens},
            {"text", run.text},
            {"ttft_ms", run.step_ms[0]},
            {"decode_ms_per_token", run.decode_ms_per_token()},
            {"prompt_computed_percent", run.prompt_computed_percent},
            {"revived_tokens", run.revived},
            {"aux_bytes_peak", run.aux_bytes_peak},
            {"kv_bytes", run.kv_bytes},
            {"layers", layers}};
  }

  std::string figures_of(std::string_view name, const Run& run) const {
    constexpr double mebibyte = 1 << 20;
    return fmt::format(
        "{}prompt {}, TTFT {:.1f} ms, then {:.2f} ms/token; KV {:.1f} MiB, Aux Cache {:.1f} MiB at most, {} revived",
        name, counted(prompt_.size(), "token"), run.step_ms[0], run.decode_ms_per_token(),
        static_cast<double>(run.kv_bytes) / mebibyte, static_cast<double>(run.aux_bytes_peak) / mebibyte,
        counted(run.revived, "row"));
  }

  Options options_;
  const Tokenizer* tokenizer_;
  std::vector<TokenId> prompt_;
  // What can be wrong with the options is found before the weights are loaded.
  Sampler sampler_;
  lazyllm::TokenPruner<lazyllm::AnyPolicy> pruner_;
  std::optional<OutputFile> json_, trace_, logits_, page_;
  std::unique_ptr<AnyModel> model_;
  std::vector<TokenId> stop_;
  StatusLine status_;
  std::string comparison_;  // what --compare found, in words
};

/// Throws `std::invalid_argument` unless the model can run the prompt and the tokens to generate.
void check(const ModelConfig& config, const std::vector<TokenId>& prompt, Index max_tokens) {
  if (prompt.empty()) fail("the prompt has 0 tokens, at least 1 is needed");
  const TokenId largest = std::ranges::max(prompt);
  if (largest >= config.vocab) {
    fail("the prompt has token ", largest, ", out of range 0 to ", config.vocab - 1,
         ", the model's vocabulary: is this the model's tokenizer?");
  }
  const Index longest = ModelLimits::context - std::ssize(prompt);
  if (max_tokens > longest) fail("--max-tokens ", max_tokens, " is out of range 1 to ", longest);
  try {
    check_length(config, std::ssize(prompt) + max_tokens);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(
        fmt::format("{} (prompt {} + --max-tokens {})", error.what(), prompt.size(), max_tokens));
  }
}

void generate(const Options& options) {
  options.check_outputs();
  const Checkpoint checkpoint(options.model.path);
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<TokenId> prompt;
  if (options.token_ids.empty() || !options.model.tokenizer.empty()) {
    tokenizer = open_tokenizer_for(options.model, checkpoint.config());
  }
  if (!options.token_ids.empty()) {
    prompt = read_token_ids(options.token_ids, checkpoint.config().vocab);
  } else {
    prompt = tokenizer->encode(
        options.prompt_file.empty() ? options.prompt : read_input(options.prompt_file, InputKind::file_or_pipe), true);
  }
  check(checkpoint.config(), prompt, options.max_tokens);
  Program(options, checkpoint, tokenizer.get(), std::move(prompt)).run();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Generates text with a Llama-like model, pruning prompt tokens as LazyLLM does (arXiv 2407.14057).",
               "lazyllm-generate");
  add_model_options(app, options.model, {"f32", "bf16", "f16"});
  add_device_option(app, options.model);
  auto* prompt = app.add_option_group("Prompt");
  prompt->add_option("--prompt", options.prompt, "the prompt itself");
  prompt->add_option("--prompt-file", options.prompt_file, "a file that holds the prompt")
      ->check(CLI::ExistingFile)
      ->option_text("FILE");
  prompt->add_option("--token-ids", options.token_ids, "a file of token ids: decimal numbers or a JSON array")
      ->check(CLI::ExistingFile)
      ->option_text("FILE");
  prompt->require_option(1);
  add_pruning_options(app, options.pruning);
  add_number(app, "--max-tokens", options.max_tokens, "tokens to generate at most", {.least = 1});
  add_number(app, "--temperature", options.sampling.temperature,
             "0: always the most likely token; above: draw, the flatter the higher")
      ->type_name("T");
  add_number(app, "--top-p", options.sampling.top_p,
             "draw among the most likely tokens that hold this share, in (0, 1]")
      ->type_name("P");
  add_number(app, "--seed", options.sampling.seed, "seed of the drawing");
  app.add_flag("--compare", options.compare, "run dense and lazy in turn and compare them");
  add_number(app, "--repeats", options.repeats, "with --compare: runs of each, times are medians", {.least = 1});
  add_path(app, "--json", options.json, "write figures (ms, bytes, percent), tokens and text to this file")
      ->type_name("FILE");
  add_path(app, "--trace", options.trace,
           "write the positions active in each layer of each step to this file, as JSON; of the lazy run")
      ->type_name("FILE");
  add_path(app, "--report", options.report,
           "write a page for a browser to this file: the prompt's tokens by how deep each went and when it was "
           "revived, work per layer, times and memory; of the lazy run")
      ->type_name("FILE");
  add_path(app, "--logits", options.logits,
           "write the logits to this file: little-endian f32, one row of vocabulary size per generated token; "
           "of the lazy run")
      ->type_name("FILE");
  return run_program(app, argc, argv, [&] { generate(options); });
}
