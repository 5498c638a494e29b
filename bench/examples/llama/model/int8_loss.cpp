#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "examples/calibrate/agreement.hpp"
#include "examples/calibrate/prompts.hpp"
#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/checkpoint/json.hpp"
#include "examples/llama/files/output_file.hpp"
#include "examples/llama/model/any_model.hpp"
#include "examples/llama/program/brief_spinning.hpp"
#include "examples/llama/program/command_line.hpp"
#include "examples/llama/program/console.hpp"
#include "examples/llama/program/cut_middle.hpp"
#include "examples/llama/program/model_files.hpp"
#include "examples/llama/program/model_options.hpp"
#include "examples/llama/program/timing.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

// What weights in int8 cost and give: both models run the same prompts and then the tokens that the one with whole
// weights would write, so that every distribution has the same text before it.

namespace {

using namespace llama;

struct Options {
  ModelOptions model;
  std::string data, json;
  Index prompts_limit = 16, prompt_tokens = 2048, tokens = 32;

  /// Throws `file_error` if the output would be written over what is read, or the next run would read it.
  void check_output() const {
    check_apart_from_prompts({{"--json", json}}, named_files("--model", model_files(model.path, model.tokenizer)),
                             data);
  }
};

struct Sums {
  double kl = 0, equal = 0, count = 0;
  std::vector<double> prefill_ms[2], decode_ms[2];
};

void run(AnyDecoder& whole, AnyDecoder& int8, Tokens prompt, Index tokens, Sums& sums) {
  whole.clear();
  int8.clear();
  std::vector<TokenId> next(prompt.begin(), prompt.end());
  for (Index token = 0; token < tokens; ++token) {
    std::span<const float> logits[2];
    for (const int i : {0, 1}) {
      const Clock::time_point start = Clock::now();
      logits[i] = (i == 0 ? whole : int8).step(next);
      (token == 0 ? sums.prefill_ms : sums.decode_ms)[i].push_back(milliseconds_since(start));
    }
    sums.kl += kl_divergence(logits[0], logits[1]);
    const auto likeliest = [&](int i) { return std::ranges::max_element(logits[i]) - logits[i].begin(); };
    sums.equal += likeliest(0) == likeliest(1) ? 1 : 0;
    ++sums.count;
    next.assign(1, static_cast<TokenId>(likeliest(0)));
  }
}

void measure(const Options& options) {
  options.check_output();
  std::optional<OutputFile> file;
  if (!options.json.empty()) file.emplace(options.json);
  std::vector<Prompt> prompts = read_prompts(options.data);
  prompts.resize(std::min(prompts.size(), static_cast<std::size_t>(options.prompts_limit)));
  const Checkpoint checkpoint(options.model.path);
  const auto tokenizer = open_tokenizer_for(options.model, checkpoint.config());
  Placement placement = options.model.placement;
  placement.int8 = false;
  const auto whole = open_model(checkpoint.config(), weights_of(checkpoint), placement);
  placement.int8 = true;
  const auto int8 = open_model(checkpoint.config(), weights_of(checkpoint), placement);
  const Index capacity = options.prompt_tokens + options.tokens;
  const auto whole_decoder = whole->dense(capacity), int8_decoder = int8->dense(capacity);
  Sums sums;
  for (const Prompt& prompt : prompts) {
    run(*whole_decoder, *int8_decoder, cut_middle(tokenizer->encode(prompt.text, true), options.prompt_tokens),
        options.tokens, sums);
  }
  const nlohmann::ordered_json report = {{"model", options.model.path},
                                         {"dtype", options.model.placement.dtype},
                                         {"threads", options.model.placement.threads},
                                         {"prompts", prompts.size()},
                                         {"prompt_tokens", options.prompt_tokens},
                                         {"tokens", static_cast<Index>(sums.count)},
                                         {"kl", sums.kl / sums.count},
                                         {"equal_percent", 100 * sums.equal / sums.count},
                                         {"prefill_ms", median(sums.prefill_ms[0])},
                                         {"int8_prefill_ms", median(sums.prefill_ms[1])},
                                         {"decode_ms", median(sums.decode_ms[0])},
                                         {"int8_decode_ms", median(sums.decode_ms[1])}};
  if (file) {
    file->commit(json_text(report, 2) + "\n");
  } else {
    print("{}\n", json_text(report, 2));
  }
}

}  // namespace

int main(int argc, char** argv) {
  spin_briefly(argv);
  Options options;
  CLI::App app("Compares a model with weights in int8 with the same one without: distributions and times.",
               "int8_loss");
  add_model_options(app, options.model);
  add_path(app, "--data", options.data,
           "prompts: JSON lines (*.jsonl) with a prompt; a text file that is one prompt; or a folder of both")
      ->required();
  add_number(app, "--prompts-limit", options.prompts_limit, "prompts to use at most, of each file in turn",
             {.least = 1});
  add_number(app, "--prompt-tokens", options.prompt_tokens, "longest prompt; of a longer one the middle goes",
             {2, ModelLimits::context});
  add_number(app, "--tokens", options.tokens, "tokens after each prompt", {2, ModelLimits::context});
  add_path(app, "--json", options.json, "write the figures to this file instead of the standard output");
  return run_program(app, argc, argv, [&] { measure(options); });
}
