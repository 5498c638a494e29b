#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <iterator>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/checkpoint/json.hpp"
#include "examples/llama/files/file_error.hpp"
#include "examples/llama/files/input_file.hpp"
#include "examples/llama/files/output_file.hpp"
#include "examples/llama/generate/compare.hpp"
#include "examples/llama/generate/generator.hpp"
#include "examples/llama/kernels/cpu/isa.hpp"
#include "examples/llama/model/any_model.hpp"
#include "examples/llama/program/brief_spinning.hpp"
#include "examples/llama/program/command_line.hpp"
#include "examples/llama/program/console.hpp"
#include "examples/llama/program/cut_middle.hpp"
#include "examples/llama/program/model_files.hpp"
#include "examples/llama/program/model_options.hpp"
#include "examples/llama/program/processes.hpp"
#include "examples/llama/program/pruning_options.hpp"
#include "examples/llama/report/report.hpp"
#include "examples/llama/tokenizer/chat_template.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

namespace {

using namespace llama;
using Json = nlohmann::ordered_json;

struct Options {
  ModelOptions model;
  std::string parallel;
  std::string prompt, prompt_file, token_ids;
  bool chat = false;
  PruningOptions pruning;
  Index max_tokens = 64;
  std::optional<Index> context;
  Sampling sampling;
  bool compare = false, ignore_stop = false, cuda_graphs = false;
  Index repeats = 3;
  std::string json, trace, logits, report;

  /// Throws `file_error` if an output would be written over another one, or over what is read.
  void check_outputs() const {
    std::vector<NamedFile> inputs = named_files("--model", model_files(model.path, model.tokenizer));
    inputs.push_back({"--prompt-file", prompt_file});
    inputs.push_back({"--token-ids", token_ids});
    inputs.push_back({"--schedule", preset_file_of(pruning)});
    check_apart({{"--json", json}, {"--trace", trace}, {"--logits", logits}, {"--report", report}}, inputs);
  }
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

/// The settings of the run, for `--json`.
Json settings(const Options& options, const ModelConfig& config, std::size_t prompt_tokens) {
  const PruningOptions pruning = resolved(options.pruning, config.layers, widths_of(config));
  Json json = {{"model", options.model.path},
               {"device", options.model.placement.device},
               {"dtype", options.model.placement.dtype},
               {"threads", options.model.placement.threads},
               {"prompt_tokens", prompt_tokens},
               {"max_tokens", options.max_tokens},
               {"temperature", options.sampling.temperature},
               {"top_p", options.sampling.top_p},
               {"seed", options.sampling.seed}};
  if (options.model.placement.device == "cpu") json["isa"] = best_isa();
  if (options.model.placement.int8) json["weights"] = "int8";
  json.update(to_json(pruning));
  if (options.pruning.schedule != pruning.schedule) json["preset"] = options.pruning.schedule;
  return json;
}

/// Dense, then lazy, printed as they grow; then, for more than one repeat, as many of both whose steps take turns.
Comparison compare(Generator& generator, AnyDecoder& dense, AnyDecoder& lazy, Index repeats, Json& report) {
  std::vector<Run> dense_runs, lazy_runs;
  print_text("dense: ");
  dense_runs.push_back(generator.generate(dense, true));
  print_text("\nlazy:  ");
  lazy_runs.push_back(generator.generate(lazy, true));
  print_text("\n\n");
  for (Index i = 0; repeats > 1 && i < repeats; ++i) {
    auto [dense_run, lazy_run] = generator.generate_in_turn(dense, lazy);
    dense_runs.push_back(std::move(dense_run));
    lazy_runs.push_back(std::move(lazy_run));
  }
  return compare(std::move(dense_runs), std::move(lazy_runs), report);
}

void generate(const Options& options) {
  options.check_outputs();
  const Checkpoint checkpoint(options.model.path);
  const ModelConfig& config = checkpoint.config();
  std::unique_ptr<Tokenizer> tokenizer;
  if (options.token_ids.empty() || !options.model.tokenizer.empty()) {
    tokenizer = open_tokenizer_for(options.model, config);
  }
  std::vector<TokenId> prompt;
  if (!options.token_ids.empty()) {
    if (options.chat) fail("--chat needs a text: --prompt or --prompt-file, not --token-ids");
    prompt = read_token_ids(options.token_ids, config.vocab);
  } else {
    const std::string text =
        options.prompt_file.empty() ? options.prompt : read_input(options.prompt_file, InputKind::file_or_pipe);
    prompt = options.chat ? open_chat_template(options.model.tokenizer_path()).encode(*tokenizer, text)
                          : tokenizer->encode(text, true);
  }
  if (options.context) {
    if (*options.context < options.max_tokens + 2) {
      fail("--context ", *options.context, " is out of range: at least ", options.max_tokens + 2,
           ", 2 more than --max-tokens");
    }
    prompt = cut_middle(std::move(prompt), *options.context - options.max_tokens);
  }
  check(config, prompt, options.max_tokens);

  // What can be wrong with the options is found before the weights are loaded.
  if (options.cuda_graphs && options.model.placement.device != "cuda") fail("--cuda-graphs needs --device cuda");
  Generator generator(
      prompt, options.max_tokens, options.sampling, tokenizer.get(),
      options.ignore_stop ? std::vector<TokenId>() : stop_tokens(config, tokenizer.get()),
      {.trace = !options.trace.empty(), .logits = !options.logits.empty(), .active_layers = !options.report.empty()});
  const auto pruner = make_pruner(options.pruning, config.layers, widths_of(config));
  Json report = settings(options, config, prompt.size());
  const bool writes = !options.model.placement.group || options.model.placement.group->writes();
  const auto open = [writes](const std::string& path) {
    return path.empty() || !writes ? std::nullopt : std::optional<OutputFile>(std::in_place, path);
  };
  std::optional<OutputFile> json = open(options.json), trace = open(options.trace), logits = open(options.logits),
                            page = open(options.report);

  const auto model = open_model(config, weights_of(checkpoint), options.model.placement);
  const Index capacity = std::ssize(prompt) + options.max_tokens;
  const auto lazy = model->lazy(capacity, pruner);
  if (options.cuda_graphs) lazy->use_graphs();
  Run run;
  std::string comparison;
  if (options.compare) {
    const auto dense = model->dense(capacity);
    Comparison found = compare(generator, *dense, *lazy, options.repeats, report);
    run = std::move(found.lazy);
    comparison = std::move(found.figures);
  } else {
    run = generator.generate(*lazy, true);
    print_text("\n");
    report.update(to_json(run));
  }

  // An output that cannot be written must not lose the others.
  std::string lost;
  const auto commit = [&lost](const std::string& path, const std::optional<OutputFile>& file, const auto& content) {
    try {
      if (file) file->commit(content());
    } catch (const std::bad_alloc&) {
      lost += fmt::format("{}{}: not enough memory to write the file", lost.empty() ? "" : "; ", path);
    } catch (const std::exception& error) {
      lost += fmt::format("{}{}", lost.empty() ? "" : "; ", error.what());
    }
  };
  commit(options.json, json, [&] { return json_text(report, 2) + "\n"; });
  commit(options.trace, trace, [&] { return run.trace.dump() + "\n"; });
  commit(options.logits, logits, [&] {
    return std::string_view(reinterpret_cast<const char*>(run.logits.data()), run.logits.size() * sizeof(float));
  });
  commit(options.report, page, [&] {
    std::ranges::copy(run.tokens, std::back_inserter(prompt));  // not by insert, at which g++ 14 warns of nothing
    return report_page(
        {.tokens = prompt, .tokenizer = tokenizer.get(), .layers = config.layers, .steps = run.active_layers}, report);
  });
  if (!lost.empty()) throw file_error(lost);
  // After the files: whoever reads this may be gone.
  say_if_not_pruned(resolved(options.pruning, config.layers, widths_of(config)), run.prompt_tokens);
  if (options.compare) {
    print_text(comparison);
  } else {
    say("{}", figures_of("", run));
  }
}

}  // namespace

int main(int argc, char** argv) {
  spin_briefly(argv);
  Options options;
  CLI::App app("Generates text with a Llama-like model, pruning prompt tokens as LazyLLM does (arXiv 2407.14057).",
               "lazyllm-generate");
  add_model_options(app, options.model);
  add_parallel_option(app, options.parallel);
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
  add_number(app, "--max-tokens", options.max_tokens, "tokens to generate at most", {1, ModelLimits::context});
  add_number(app, "--context", options.context,
             "longest prompt and answer in tokens; a longer prompt loses its middle (default: it is an error)",
             {1, ModelLimits::context});
  add_number(app, "--temperature", options.sampling.temperature,
             "0: always the most likely token; above: draw, the flatter the higher")
      ->type_name("T");
  add_number(app, "--top-p", options.sampling.top_p,
             "draw among the most likely tokens that hold this share, in (0, 1]")
      ->type_name("P");
  add_number(app, "--seed", options.sampling.seed, "seed of the drawing");
  app.add_flag("--ignore-stop", options.ignore_stop, "go on after an answer's end, to measure --max-tokens tokens");
  app.add_flag("--cuda-graphs", options.cuda_graphs,
               "with --device cuda: replay the decode steps of the lazy run as CUDA graphs");
  app.add_flag("--compare", options.compare, "run dense and lazy in turn and compare them");
  add_number(
      app, "--repeats", options.repeats,
      "with --compare: timed runs of each; more than 1 follow the printed ones, their steps take turns, and times are "
      "medians",
      {.least = 1});
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
  return run_program(app, argc, argv, [&] {
    run_parallel(options.parallel, [&](std::shared_ptr<RankGroup> group) {
      options.model.placement.group = std::move(group);
      generate(options);
    });
  });
}
