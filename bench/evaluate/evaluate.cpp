#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/evaluate/evaluator.hpp"
#include "bench/evaluate/method.hpp"
#include "bench/evaluate/reader.hpp"
#include "bench/evaluate/result_log.hpp"
#include "bench/evaluate/summary.hpp"
#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/checkpoint/json.hpp"
#include "examples/llama/files/output_file.hpp"
#include "examples/llama/files/printable.hpp"
#include "examples/llama/kernels/cpu/isa.hpp"
#include "examples/llama/model/any_model.hpp"
#include "examples/llama/program/brief_spinning.hpp"
#include "examples/llama/program/command_line.hpp"
#include "examples/llama/program/console.hpp"
#include "examples/llama/program/counted.hpp"
#include "examples/llama/program/fingerprint.hpp"
#include "examples/llama/program/input_files.hpp"
#include "examples/llama/program/model_files.hpp"
#include "examples/llama/program/model_options.hpp"
#include "examples/llama/program/processes.hpp"
#include "examples/llama/program/progress.hpp"

namespace {

using namespace llama;
using Json = nlohmann::ordered_json;

struct Options {
  ModelOptions model;
  std::string parallel;
  DataOptions data;
  bool chat = false;
  std::string method = "lazy";
  MethodOptions method_options;
  std::optional<Index> context;
  Index speed_items = 3;
  Index repeats = 3;
  std::string json, resume;

  /// Where finished items are kept; empty: nowhere. Ranks must all run the same items, so they keep none.
  std::string partial() const {
    if (!resume.empty() || json.empty() || !parallel.empty()) return resume;
    return json + ".partial.jsonl";
  }

  /// Throws `file_error` if an output would be written over another one or over what is read, or the next run would
  /// read it.
  void check_outputs() const {
    std::vector<NamedFile> inputs = named_files("--model", model_files(model.path, model.tokenizer));
    const auto add = [&](const std::string& option, const std::vector<std::filesystem::path>& paths) {
      for (NamedFile& file : named_files(option, paths)) inputs.push_back(std::move(file));
    };
    add("--data", files_at(data.data, {".jsonl"}));
    add("--prompts", {data.prompts});
    add("--lengths", {data.lengths});
    add("--schedule", {preset_file_of(method_options.pruning)});
    if (!method_options.compressor.empty()) add("--compressor", model_files(method_options.compressor));
    const std::vector<NamedFile> outputs = {{"--json", json},
                                            {resume.empty() ? "the log of --json" : "--resume", partial()}};
    check_apart(outputs, inputs);
    check_outside(outputs, data.data, {".jsonl"});
  }
};

/// The longest sequence that the model can run, or `context` where that is less.
Index usable_context(const ModelConfig& config, std::optional<Index> context) {
  const Index longest = longest_sequence(config);
  if (context && *context > longest) {
    fail("--context ", *context, " is out of range 1 to ", longest, ", what the model can run");
  }
  return context.value_or(longest);
}

/// What the results depend on, besides the items.
Json settings(const Options& options, const MethodOptions& method, const ChatTemplate* chat, Index context) {
  Json json = {{"model", options.model.path},
               {"model_fingerprint", fingerprint_of(model_files(options.model.path, options.model.tokenizer))}};
  if (!options.model.tokenizer.empty()) json["tokenizer"] = options.model.tokenizer;
  if (chat != nullptr) json["chat"] = chat->text("");  // a template may write the date
  json.update(to_json(method));
  if (!method.compressor.empty() && method.method == Method::compress) {
    json["compressor_fingerprint"] = fingerprint_of(model_files(method.compressor));
  }
  json.update({{"context", context},
               {"device", options.model.placement.device},
               {"dtype", options.model.placement.dtype},
               {"isa", best_isa()},
               {"threads", options.model.placement.threads},
               {"speed_items", options.speed_items},
               {"repeats", options.repeats}});
  if (options.model.placement.int8) json["weights"] = "int8";
  return json;
}

void report_bad(const BadLine& line) { say("{}: {}", line.place, line.reason); }

/// The model of `--compressor`, or null if it has none of its own.
std::unique_ptr<AnyModel> load_compressor(const MethodOptions& method, const ModelConfig& config, Index context,
                                          const Placement& placement) {
  if (method.method != Method::compress || method.compressor.empty()) return nullptr;
  const Checkpoint checkpoint(method.compressor);
  if (checkpoint.config().vocab != config.vocab) {
    fail("the compressor ", method.compressor, " has a vocabulary of ", checkpoint.config().vocab,
         " tokens, the model one of ", config.vocab, ": they need the same tokenizer");
  }
  if (const Index longest = longest_sequence(checkpoint.config()); longest < context) {
    fail("the compressor ", method.compressor, " has a context of ", longest,
         " tokens: --context must not be above it, and is ", context);
  }
  return open_model(checkpoint.config(), weights_of(checkpoint), placement);
}

/// Evaluates the items one after the other. Those that fail become bad lines.
std::vector<ItemResult> evaluate_items(const Options& options, const MethodOptions& method,
                                       const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                                       const ChatTemplate* chat, Index context, Data& data, ResultLog* log) {
  const Placement& placement = options.model.placement;
  const auto model = open_model(checkpoint.config(), weights_of(checkpoint), placement);
  const auto compressor = load_compressor(method, model->config(), context, placement);
  Evaluator evaluator(method, *model, compressor ? *compressor : *model, tokenizer, context, chat);
  std::vector<ItemResult> results;
  std::map<std::string, Index> seen;
  ProgressBar progress(std::ssize(data.items));
  const auto skip = [&](const Item& item, const std::exception& error) {
    progress.clear();
    data.bad_lines.push_back({item.place, std::string(plain_message(error))});
    report_bad(data.bad_lines.back());
    progress.advance(false, item.dataset);
  };
  for (const Item& item : data.items) {
    const bool timed = ++seen[item.dataset] <= options.speed_items;
    const ItemResult* earlier = log == nullptr ? nullptr : log->find(item);
    try {
      results.push_back(earlier != nullptr ? *earlier : evaluator.evaluate(item, timed ? options.repeats : 0));
    } catch (const std::invalid_argument& error) {
      skip(item, error);
      continue;
    } catch (const lazyllm::invalid_argument& error) {
      skip(item, error);
      continue;
    }
    if (log != nullptr && earlier == nullptr) log->add(results.back());
    progress.advance(earlier != nullptr, item.dataset);
  }
  return results;
}

void evaluate(Options options) {
  options.check_outputs();
  if (!options.parallel.empty() && !options.resume.empty()) fail("--resume does not go with --parallel");
  const auto& group = options.model.placement.group;
  const bool writes = !group || group->writes();
  options.method_options.method = parse_method(options.method);
  const Checkpoint checkpoint(options.model.path);
  const ModelConfig& config = checkpoint.config();
  const auto tokenizer = open_tokenizer_for(options.model, config);
  std::optional<ChatTemplate> chat;
  if (options.chat) chat = open_chat_template(options.model.tokenizer_path());
  const MethodOptions method = resolve(options.method_options, config.layers, widths_of(config));
  const Index context = usable_context(config, options.context);
  const Json settings = ::settings(options, method, chat ? &*chat : nullptr, context);
  std::optional<OutputFile> output;
  if (!options.json.empty() && writes) output.emplace(options.json);

  Data data = read_data(options.data);
  for (const BadLine& line : data.bad_lines) report_bad(line);
  if (data.items.empty()) {
    fail("the data ", options.data.data.string(), " holds no item that can be evaluated");
  }
  std::optional<ResultLog> log;
  if (!options.partial().empty()) log.emplace(options.partial(), settings, method.runs());

  const std::vector<ItemResult> results = evaluate_items(options, method, checkpoint, *tokenizer,
                                                         chat ? &*chat : nullptr, context, data, log ? &*log : nullptr);
  const Summary summary = summarize(results);
  if (output) {
    Json report = {{"settings", settings},
                   {"data",
                    {{"data", options.data.data.string()},
                     {"prompts", options.data.prompts.string()},
                     {"lengths", options.data.lengths.string()},
                     {"longest_answer", options.data.longest_answer ? Json(*options.data.longest_answer) : Json()},
                     {"limit", options.data.limit ? Json(*options.data.limit) : Json()}}}};
    report.update(to_json(summary));
    report["bad_lines"] = Json::array();
    for (const BadLine& line : data.bad_lines) {
      report["bad_lines"].push_back({{"place", line.place}, {"reason", line.reason}});
    }
    report["items"] = nlohmann::json(results);
    output->commit(json_text(report, 1) + "\n");
    if (log && options.resume.empty()) std::filesystem::remove(options.partial());
  }
  // After the files: whoever reads this may be gone.
  print_text(printable(table(summary), Controls::lines));
  if (!data.bad_lines.empty()) print("{}\n", counted(data.bad_lines.size(), "bad line"));
}

void add_options(CLI::App& app, Options& options) {
  add_model_options(app, options.model);
  add_parallel_option(app, options.parallel);
  add_path(app, "--data", options.data.data,
           "JSON lines of LongBench (input, context, answers, all_classes, dataset) or with a rendered prompt "
           "(prompt, answers); or a folder, of which all *.jsonl are read")
      ->required();
  add_path(app, "--prompts", options.data.prompts, "LongBench's dataset2prompt.json, for lines without a prompt")
      ->type_name("FILE");
  add_path(app, "--lengths", options.data.lengths,
           "LongBench's dataset2maxlen.json, for lines without max_tokens of their own")
      ->type_name("FILE");
  add_number(app, "--max-tokens", options.data.max_tokens,
             "tokens to generate at most where neither the line nor --lengths says it", {1, max_answer_tokens});
  add_number(app, "--longest-answer", options.data.longest_answer,
             "tokens to generate at most, also where the line or --lengths says more", {1, max_answer_tokens});
  add_chat_option(app, options.chat);
  add_number(app, "--limit", options.data.limit, "at most N items of each data set", {.least = 1});
  add_number(app, "--context", options.context,
             "longest prompt and answer in tokens; longer prompts lose their middle (default: the model's)",
             {.least = 1});
  app.add_option("--method", options.method,
                 "dense; lazy: prune by --schedule; static: the same, but only in the prompt's step and for good; "
                 "random-drop: random tokens go before the model sees them; compress: the most likely ones do "
                 "(Selective Context)")
      ->check(CLI::IsMember({"dense", "lazy", "static", "random-drop", "compress"}))
      ->capture_default_str();
  add_pruning_options(app, options.method_options.pruning);
  add_number(app, "--keep", options.method_options.keep,
             "share of the prompt's tokens that random-drop and compress keep, those of --protect-first and "
             "--protect-last counted; they never drop the token that starts a text")
      ->type_name("SHARE");
  add_number(app, "--seed", options.method_options.seed, "random-drop: first seed");
  add_number(app, "--seeds", options.method_options.seeds, "random-drop: runs with different seeds, for the mean",
             {.least = 1});
  add_path(app, "--compressor", options.method_options.compressor,
           "compress: language model with the same tokenizer (default: the model itself)");
  add_number(app, "--speed-items", options.speed_items,
             "items of each data set to time, dense and the method in turn; 0: none", {.least = 0});
  add_number(app, "--repeats", options.repeats, "turns of each item that is timed; the medians count", {.least = 1});
  add_path(app, "--json", options.json, "write settings, figures, bad lines and every item's result to this file")
      ->type_name("FILE");
  add_path(app, "--resume", options.resume,
           "keep finished items in this file, and go on from what it holds (default: with --json FILE "
           "FILE.partial.jsonl, removed at the end). The file is refused where settings or files have changed; of "
           "files above 64 MiB samples are compared")
      ->type_name("FILE");
  app.footer(
      "With --chat the prompts of few-shot and code sets are left as they are, as in LongBench. "
      "Scores are LongBench's, 0 to 100; a category is the mean of its data sets, overall that of the categories. "
      "Speedups are against dense inference on the same items; ideal counts operations instead of time. "
      "KV+Aux is the peak of K/V and parked rows in percent of the K/V of the dense run; filled counts only K/V that "
      "were computed, which is what an engine with pages for each layer would hold.");
}

}  // namespace

int main(int argc, char** argv) {
  spin_briefly(argv);
  Options options;
  CLI::App app(
      "Measures quality and speed of a Llama-like model on LongBench or data like it, dense, with dynamic token "
      "pruning (arXiv 2407.14057) or with one of the methods that it is compared with.",
      "lazyllm-evaluate");
  add_options(app, options);
  return run_program(app, argc, argv, [&] {
    run_parallel(options.parallel, [&](std::shared_ptr<RankGroup> group) {
      options.model.placement.group = std::move(group);
      evaluate(options);
    });
  });
}
