#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/examples/llama/model/server.hpp"
#include "examples/calibrate/prompts.hpp"
#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/checkpoint/json.hpp"
#include "examples/llama/files/output_file.hpp"
#include "examples/llama/kernels/cpu/isa.hpp"
#include "examples/llama/model/any_model.hpp"
#include "examples/llama/program/brief_spinning.hpp"
#include "examples/llama/program/command_line.hpp"
#include "examples/llama/program/console.hpp"
#include "examples/llama/program/cut_middle.hpp"
#include "examples/llama/program/interleaved.hpp"
#include "examples/llama/program/model_files.hpp"
#include "examples/llama/program/model_options.hpp"
#include "examples/llama/program/progress.hpp"
#include "examples/llama/program/pruning_options.hpp"
#include "examples/llama/program/timing.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

namespace {

using namespace llama;

struct Options {
  ModelOptions model;
  PruningOptions pruning;
  std::string data, json;
  Index conversations = 12, prompt_tokens = 3072, follow_up_tokens = 64, answer_tokens = 64, slots = 4, repeats = 2;
  std::vector<double> loads{80};

  Index capacity() const { return prompt_tokens + follow_up_tokens + 2 * answer_tokens; }

  /// Throws `file_error` if the output would be written over what is read, or the next run would read it.
  void check_output() const {
    std::vector<NamedFile> inputs = named_files("--model", model_files(model.path, model.tokenizer));
    inputs.push_back({"--schedule", preset_file_of(pruning)});
    check_apart_from_prompts({{"--json", json}}, std::move(inputs), data);
  }
};

/// Each prompt, and the beginning of the next one as second prompt.
std::vector<Conversation> read_conversations(const Options& options, const Tokenizer& tokenizer) {
  const std::vector<Prompt> prompts = read_prompts(options.data);
  std::vector<Conversation> conversations;
  for (Index i = 0; i < options.conversations; ++i) {
    const auto tokens = [&](Index number, bool add_bos) {
      return tokenizer.encode(prompts[static_cast<std::size_t>(number % std::ssize(prompts))].text, add_bos);
    };
    std::vector<TokenId> follow_up = tokens(i + 1, false);
    follow_up.resize(std::min(follow_up.size(), static_cast<std::size_t>(options.follow_up_tokens)));
    conversations.push_back({{cut_middle(tokens(i, true), options.prompt_tokens), std::move(follow_up)}});
  }
  return conversations;
}

/// When conversations come that know nothing of each other, `mean` milliseconds apart; all at once for a mean of 0.
std::vector<double> arrivals(Index conversations, double mean, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<double> times;
  double time = 0;
  for (Index i = 0; i < conversations; ++i) {
    times.push_back(time);
    const double uniform = (static_cast<double>(random()) + 0.5) / 4294967296.0;
    time -= mean * std::log(uniform);
  }
  return times;
}

nlohmann::ordered_json report(const std::vector<Served>& runs, Index conversations) {
  std::vector<double> rates, first_tokens[2], between_tokens;
  const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (const Served& run : runs) {
    rates.push_back(60e3 * static_cast<double>(conversations) / run.whole);
    for (const std::size_t turn : {0U, 1U}) append(first_tokens[turn], run.first_tokens[turn]);
    append(between_tokens, run.between_tokens);
  }
  const auto percentiles = [](const std::vector<double>& values) {
    nlohmann::ordered_json result;
    for (const std::size_t percent : {50U, 90U, 99U})
      result["p" + std::to_string(percent)] = percentile(values, percent);
    return result;
  };
  return {{"conversations_per_minute", median(rates)},
          {"first_token_ms", percentiles(first_tokens[0])},
          {"second_turn_first_token_ms", percentiles(first_tokens[1])},
          {"between_tokens_ms", percentiles(between_tokens)}};
}

/// All loads, each dense and pruned in turn.
nlohmann::ordered_json measure_loads(const Options& options, AnyDecoder& dense, AnyDecoder& lazy,
                                     const std::vector<Conversation>& conversations) {
  ProgressBar progress(2 * options.repeats * (1 + std::ssize(options.loads)));
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  // A mean of 0 is all at once.
  const auto measure_load = [&](const nlohmann::ordered_json& percent, double mean_interval) {
    const auto served = [&](AnyDecoder& decoder, std::uint32_t turn) {
      Server server(decoder, options.slots, options.answer_tokens);
      Served result = server.run(conversations, arrivals(options.conversations, mean_interval, turn));
      progress.advance(false, "");
      return result;
    };
    std::uint32_t dense_turn = 0, lazy_turn = 0;
    const auto [dense_runs, lazy_runs] = interleaved(
        options.repeats, [&] { return served(dense, dense_turn++); }, [&] { return served(lazy, lazy_turn++); });
    results.push_back({{"load_percent", percent},
                       {"dense", report(dense_runs, options.conversations)},
                       {"lazy", report(lazy_runs, options.conversations)}});
  };
  measure_load(nullptr, 0);
  const double most = results[0]["dense"]["conversations_per_minute"].get<double>();
  for (const double load : options.loads) measure_load(load, 60e3 / most * 100 / load);
  return results;
}

void measure(const Options& options) {
  options.check_output();
  std::optional<OutputFile> file;
  if (!options.json.empty()) file.emplace(options.json);
  const Checkpoint checkpoint(options.model.path);
  const ModelConfig& config = checkpoint.config();
  if (options.capacity() > longest_sequence(config)) {
    fail("--prompt-tokens, --follow-up-tokens and twice --answer-tokens are ", options.capacity(),
         " tokens, out of range 1 to ", longest_sequence(config), ", what the model can hold");
  }
  const auto tokenizer = open_tokenizer_for(options.model, config);
  const std::vector<Conversation> conversations = read_conversations(options, *tokenizer);
  const auto model = open_model(config, weights_of(checkpoint), options.model.placement);
  const KvCacheSize size(options.capacity(), options.slots);
  const PruningOptions pruning = resolved(options.pruning, config.layers, widths_of(config));
  const auto pruner = make_pruner(pruning, config.layers);
  const auto dense = model->dense(size), lazy = model->lazy(size, pruner);
  double prompt_tokens = 0;
  for (const Conversation& conversation : conversations) {
    prompt_tokens += static_cast<double>(conversation.prompts[0].size());
  }
  const nlohmann::ordered_json result = {
      {"model", options.model.path},
      {"device", options.model.placement.device},
      {"dtype", options.model.placement.dtype},
      {"weights", options.model.placement.int8 ? "int8" : options.model.placement.dtype},
      {"isa", best_isa()},
      {"threads", options.model.placement.threads},
      {"schedule", options.pruning.schedule},
      {"pruning", to_json(pruning)},
      {"conversations", options.conversations},
      {"slots", options.slots},
      {"prompt_tokens", prompt_tokens / static_cast<double>(conversations.size())},
      {"follow_up_tokens", options.follow_up_tokens},
      {"answer_tokens", options.answer_tokens},
      {"repeats", options.repeats},
      {"loads", measure_loads(options, *dense, *lazy, conversations)}};
  if (file) {
    file->commit(json_text(result, 2) + "\n");
  } else {
    print("{}\n", json_text(result, 2));
  }
}

}  // namespace

int main(int argc, char** argv) {
  spin_briefly(argv);
  Options options;
  CLI::App app(
      "Serves conversations of two turns with continuous batching, dense and pruned under the same load: all at once, "
      "and at random times.",
      "serving_bench");
  add_model_options(app, options.model);
  add_path(app, "--data", options.data,
           "prompts: JSON lines (*.jsonl) with a prompt; a text file that is one prompt; or a folder of both")
      ->required();
  add_number(app, "--conversations", options.conversations, "conversations of a run", {1, 1 << 20});
  add_number(app, "--prompt-tokens", options.prompt_tokens, "longest prompt; of a longer one the middle goes",
             {2, ModelLimits::context});
  add_number(app, "--follow-up-tokens", options.follow_up_tokens, "tokens of the second turn's prompt",
             {1, ModelLimits::context});
  add_number(app, "--answer-tokens", options.answer_tokens, "tokens of each answer", {2, ModelLimits::context});
  add_number(app, "--slots", options.slots, "conversations that run at once, at most", {1, 1 << 10});
  add_numbers(app, "--load", options.loads,
              "how many conversations come, in percent of those that dense inference can serve; several one after the "
              "other",
              {1, 1000});
  add_pruning_options(app, options.pruning);
  add_number(app, "--repeats", options.repeats, "runs of each, dense and pruned in turn, with other times of arrival",
             {1, 1000});
  add_path(app, "--json", options.json, "write the figures to this file instead of the standard output");
  return run_program(app, argc, argv, [&] { measure(options); });
}
