#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/checkpoint/json.hpp"
#include "examples/llama/model/any_model.hpp"
#include "examples/llama/model/sampler.hpp"
#include "examples/llama/program/command_line.hpp"
#include "examples/llama/program/counted.hpp"
#include "examples/llama/program/generation.hpp"
#include "examples/llama/program/input_files.hpp"
#include "examples/llama/program/model_options.hpp"
#include "examples/llama/program/output_file.hpp"
#include "examples/llama/program/progress.hpp"
#include "examples/llama/program/pruning_options.hpp"
#include "examples/llama/program/timing.hpp"
#include "examples/llama/report/report.hpp"
#include "examples/llama/tokenizer/chat_template.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

namespace {

using namespace llama;
using Json = nlohmann::ordered_json;

struct Options {
  ModelOptions model;
  std::string prompt, prompt_file, token_ids;
  bool chat = false;
  PruningOptions pruning;
  Index max_tokens = 64;
  Sampling sampling;
  bool compare = false;
  Index repeats = 3;
  std::string json, trace, logits, report;
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
        model_(open_model(checkpoint.config(), weights_of(checkpoint),
                          {options.model.device, options.model.dtype, options.model.threads})),
        stop_(stop_tokens(model_->config(), tokenizer)) {}

  void run() {
    const Index capacity = std::ssize(prompt_) + options_.max_tokens;
    const std::unique_ptr<AnyDecoder> lazy = model_->lazy(capacity, pruner_);

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
      result = compare(*model_->dense(capacity), *lazy, report);
    } else {
      result = generate(*lazy, true);
      print("\n");
      describe(stderr, "", result);
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
  }

 private:
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
      if (tokenizer_ == nullptr && stream) print(fmt::format("{} ", step.token));
      emit(run, step.text, stream);
    };
    emit(run, generate_tokens(decoder, prompt_, options_.max_tokens, stop_, tokenizer_, draw, keep), stream);
    decoder.observe_layers(nullptr);
    run.prompt_computed_percent = decoder.computed_percent(std::ssize(prompt_));
    return run;
  }

  static void emit(Run& run, const std::string& text, bool stream) {
    run.text += text;
    if (stream) print(text);
  }

  static void print(const std::string& text) {
    fmt::print("{}", text);
    std::fflush(stdout);
  }

  /// Dense and lazy in turn, so that a machine whose speed drifts treats both alike. Returns the lazy run.
  Run compare(AnyDecoder& dense_decoder, AnyDecoder& lazy_decoder, Json& report) {
    std::vector<Run> dense, lazy;
    for (Index i = 0; i < options_.repeats; ++i) {
      const bool stream = i == 0;
      if (stream) fmt::print("dense: ");
      dense.push_back(generate(dense_decoder, stream));
      if (stream) fmt::print("\nlazy:  ");
      lazy.push_back(generate(lazy_decoder, stream));
      if (stream) fmt::print("\n\n");
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

    describe(stdout, "dense: ", dense[0]);
    describe(stdout, "lazy:  ", lazy[0]);
    fmt::print("prompt computed: {:.1f} % of its token-layers\n", lazy[0].prompt_computed_percent);
    fmt::print("equal tokens: the first {} of {}\n", equal, common);
    fmt::print("generation speedup: {:.2f}x over {}\n", generation_speedup, counted(common, "token"));
    fmt::print("TTFT speedup: {:.2f}x (ideal by operation count {:.2f}x, median of {})\n", ttft_speedup, ideal,
               options_.repeats);
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

  void describe(std::FILE* out, const char* name, const Run& run) const {
    constexpr double mebibyte = 1 << 20;
    fmt::print(out,
               "{}prompt {}, TTFT {:.1f} ms, then {:.2f} ms/token; KV {:.1f} MiB, Aux Cache {:.1f} MiB at most, "
               "{} revived\n",
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
  const Checkpoint checkpoint(options.model.path);
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<TokenId> prompt;
  if (options.token_ids.empty() || !options.model.tokenizer.empty()) {
    tokenizer = open_tokenizer_for(options.model, checkpoint.config());
  }
  if (!options.token_ids.empty()) {
    if (options.chat) fail("--chat needs a text: --prompt or --prompt-file, not --token-ids");
    prompt = read_token_ids(options.token_ids, checkpoint.config().vocab);
  } else {
    const std::string text = options.prompt_file.empty() ? options.prompt : read_text(options.prompt_file);
    prompt = options.chat ? open_chat_template(options.model.tokenizer_path()).encode(*tokenizer, text)
                          : tokenizer->encode(text, true);
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
  add_chat_option(app, options.chat);
  add_pruning_options(app, options.pruning);
  app.add_option("--max-tokens", options.max_tokens, "tokens to generate at most")
      ->check(at_least(1))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--temperature", options.sampling.temperature,
                 "0: always the most likely token; above: draw, the flatter the higher")
      ->type_name("T")
      ->capture_default_str();
  app.add_option("--top-p", options.sampling.top_p, "draw among the most likely tokens that hold this share, in (0, 1]")
      ->type_name("P")
      ->capture_default_str();
  app.add_option("--seed", options.sampling.seed, "seed of the drawing")->type_name("N")->capture_default_str();
  app.add_flag("--compare", options.compare, "run dense and lazy in turn and compare them");
  app.add_option("--repeats", options.repeats, "with --compare: runs of each, times are medians")
      ->check(at_least(1))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--json", options.json, "write figures (ms, bytes, percent), tokens and text to this file")
      ->type_name("FILE");
  app.add_option("--trace", options.trace,
                 "write the positions active in each layer of each step to this file, as JSON; of the lazy run")
      ->type_name("FILE");
  app.add_option("--report", options.report,
                 "write a page for a browser to this file: the prompt's tokens by how deep each went and when it was "
                 "revived, work per layer, times and memory; of the lazy run")
      ->type_name("FILE");
  app.add_option("--logits", options.logits,
                 "write the logits to this file: little-endian f32, one row of vocabulary size per generated token; "
                 "of the lazy run")
      ->type_name("FILE");
  return run_program(app, argc, argv, [&] { generate(options); });
}
