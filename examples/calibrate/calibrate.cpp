#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "examples/calibrate/agreement.hpp"
#include "examples/calibrate/outcome_log.hpp"
#include "examples/calibrate/prompts.hpp"
#include "examples/calibrate/schedule_file.hpp"
#include "examples/calibrate/search.hpp"
#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/checkpoint/json.hpp"
#include "examples/llama/files/output_file.hpp"
#include "examples/llama/files/printable.hpp"
#include "examples/llama/model/any_model.hpp"
#include "examples/llama/model/operations.hpp"
#include "examples/llama/program/command_line.hpp"
#include "examples/llama/program/console.hpp"
#include "examples/llama/program/counted.hpp"
#include "examples/llama/program/cut_middle.hpp"
#include "examples/llama/program/fingerprint.hpp"
#include "examples/llama/program/interleaved.hpp"
#include "examples/llama/program/memory.hpp"
#include "examples/llama/program/model_files.hpp"
#include "examples/llama/program/model_options.hpp"
#include "examples/llama/program/progress.hpp"
#include "examples/llama/program/timing.hpp"

namespace {

using namespace llama;

/// The losses of the presets that are written, in percent.
constexpr std::array percents = {1, 5, 10};

struct Options {
  ModelOptions model;
  std::string data, out;
  Index prompts_limit = 32;
  Index tokens = 16;
  Index runs = 64;
  bool resume = false;

  std::string log() const { return out + ".log.jsonl"; }

  /// Throws `file_error` if an output would be written over another one, or over what is read.
  void check_outputs() const {
    std::vector<NamedFile> inputs = named_files("--model", model_files(model.path, model.tokenizer));
    for (NamedFile& file : named_files("--data", prompt_files(data))) inputs.push_back(std::move(file));
    check_apart({{"--out", out}, {"the log of --out", log()}}, inputs);
  }
};

struct EncodedPrompt {
  std::vector<TokenId> tokens;
  std::string category;
  Index most = 0;  // tokens to compare
};

/// The first prompts, cut in the middle where they and the answer do not fit the model.
std::vector<EncodedPrompt> encode_prompts(const Options& options, const ModelConfig& config,
                                          const Tokenizer& tokenizer) {
  const Index longest = longest_sequence(config) - options.tokens;
  if (longest < 2) {
    fail("--tokens ", options.tokens, " is out of range 1 to ", longest + options.tokens - 2,
         ": what the model can run, less a prompt");
  }
  std::vector<Prompt> prompts = read_prompts(options.data);
  prompts.resize(std::min(prompts.size(), static_cast<std::size_t>(options.prompts_limit)));
  std::vector<EncodedPrompt> encoded;
  for (Prompt& prompt : prompts) {
    encoded.push_back({cut_middle(tokenizer.encode(prompt.text, true), longest), std::move(prompt.category),
                       std::min(options.tokens, prompt.max_tokens.value_or(options.tokens))});
  }
  return encoded;
}

class Calibration {
 public:
  Calibration(const Options& options, const Checkpoint& checkpoint, const Tokenizer& tokenizer,
              std::vector<EncodedPrompt> prompts)
      : options_(options),
        out_(options.out),
        log_(options.log(), options.resume),
        model_(with_memory_for_weights(
            checkpoint.config(), options.model.placement.dtype,
            [&] { return open_model(checkpoint.config(), weights_of(checkpoint), options.model.placement); })),
        capacity_(options.tokens) {
    for (const EncodedPrompt& prompt : prompts) {
      capacity_ = std::max(capacity_, std::ssize(prompt.tokens) + options.tokens);
    }
    const std::vector<TokenId> stop = stop_tokens(model_->config(), &tokenizer);
    const auto dense = with_memory_for_keys(model_->config(), options.model.placement.dtype, capacity_,
                                            [&] { return model_->dense(capacity_); });
    ProgressBar progress(std::ssize(prompts));
    for (EncodedPrompt& prompt : prompts) {
      references_.push_back(make_reference(*dense, std::move(prompt.tokens), prompt.most, stop));
      search_prompts_.push_back({std::move(prompt.category), std::ssize(references_.back().tokens)});
      progress.advance(false, "dense");
    }
  }

  void run() {
    log_.start(settings(), std::ssize(references_), model_->config().layers);
    const SearchResult found = search();
    const auto name = std::filesystem::canonical(options_.model.path).filename().string();
    std::vector<NamedPreset> presets;
    for (std::size_t i = 0; i < percents.size(); ++i) {
      presets.push_back({fmt::format("{}%", percents[i]), found.best[i], ttft_speedup(found.best[i].preset)});
    }
    const auto file = schedule_file(name, model_->config().layers, presets, found.front);
    out_.commit(json_text(file, 2) + "\n");
    for (const NamedPreset& preset : presets) print_text(described(preset));
  }

 private:
  /// What outcomes depend on.
  nlohmann::ordered_json settings() const {
    Fingerprint fingerprint;
    for (const Reference& reference : references_) {
      for (const auto* tokens : {&reference.prompt, &reference.tokens}) {
        fingerprint.add({reinterpret_cast<const char*>(tokens->data()), tokens->size() * sizeof(TokenId)});
      }
    }
    return {{"model", options_.model.path},
            {"model_fingerprint", fingerprint_of(model_files(options_.model.path, options_.model.tokenizer))},
            {"device", options_.model.placement.device},
            {"dtype", options_.model.placement.dtype},
            {"prompts", references_.size()},
            {"tokens", options_.tokens},
            {"fingerprint", fingerprint.value()}};
  }

  double operations(const lazyllm::Preset& preset) const {
    double sum = 0;
    for (const Reference& reference : references_) {
      sum += prefill_operations(model_->config(), std::ssize(reference.prompt), preset);
    }
    return sum;
  }

  SearchResult search() {
    const Index most = options_.runs * std::ssize(references_);
    ProgressBar progress(most);
    std::string current;
    std::unique_ptr<AnyDecoder> decoder;
    const double dense = operations({});
    const SearchProblem problem{
        .layers = model_->config().layers,
        .prompts = search_prompts_,
        .ideal_speedup = [&](const lazyllm::Preset& preset) { return dense / operations(preset); },
        .evaluate =
            [&](const lazyllm::Preset& preset, Index prompt) {
              const std::string text = lazyllm::to_text(preset.schedule) + "  " + lazyllm::to_text(preset.score);
              const Outcome* const earlier = log_.find(preset, prompt);
              if (earlier != nullptr) {
                progress.advance(true, text);
                return *earlier;
              }
              if (const std::string key = nlohmann::json(preset).dump(); key != current) {
                decoder.reset();  // before the next one takes its memory
                decoder = model_->lazy(capacity_, make_pruner(preset));
                current = key;
              }
              const Outcome outcome = agree(*decoder, references_[static_cast<std::size_t>(prompt)]);
              log_.add(preset, prompt, outcome);
              progress.advance(false, text);
              return outcome;
            },
    };
    std::vector<double> losses;
    for (const int percent : percents) losses.push_back(percent / 100.0);
    return llama::search(problem, losses, most);
  }

  /// Of dense and pruned prefills in turn: medians of each prompt, of a few prompts.
  double ttft_speedup(const lazyllm::Preset& preset) const {
    if (preset.schedule.points().empty()) return 1;
    constexpr Index repeats = 3;
    const Index prompts = std::min<Index>(3, std::ssize(references_));
    const std::unique_ptr<AnyDecoder> dense = model_->dense(capacity_);
    const std::unique_ptr<AnyDecoder> lazy = model_->lazy(capacity_, make_pruner(preset));
    double dense_ms = 0;
    double lazy_ms = 0;
    for (Index i = 0; i < prompts; ++i) {
      const auto& prompt = references_[static_cast<std::size_t>(i * std::ssize(references_) / prompts)].prompt;
      const auto prefill_ms = [&prompt](AnyDecoder& decoder) {
        decoder.clear();
        const Clock::time_point start = Clock::now();
        decoder.step(prompt);
        return milliseconds_since(start);
      };
      const auto [dense_times, lazy_times] = interleaved(
          repeats, [&] { return prefill_ms(*dense); }, [&] { return prefill_ms(*lazy); });
      dense_ms += median(dense_times);
      lazy_ms += median(lazy_times);
    }
    return dense_ms / lazy_ms;
  }

  static std::string described(const NamedPreset& named) {
    const auto& [preset, ideal, agreement] = named.candidate;
    const std::string schedule = nlohmann::json(preset).at("schedule");
    std::string text = fmt::format("{:>3}: {}, score {}, protected {} + {}\n", named.name, schedule,
                                   lazyllm::to_text(preset.score), preset.protect_first, preset.protect_last);
    text += fmt::format("     loss {:.2f} % of {} after {}, first tokens equal {:.1f} %, KL {:.4f} nats\n",
                        100 * agreement.loss, counted(agreement.tokens, "token"), counted(agreement.prompts, "prompt"),
                        100 * agreement.first_token_match, agreement.kl);
    for (const auto& [category, loss] : agreement.category_loss) {
      if (!category.empty()) text += fmt::format("       {}: loss {:.2f} %\n", printable(category), 100 * loss);
    }
    return text +
           fmt::format("     TTFT speedup {:.2f}x, ideal by operation count {:.2f}x\n", named.ttft_speedup, ideal);
  }

  Options options_;
  OutputFile out_;  // before the weights are loaded: a path that cannot be written is an error then
  OutcomeLog log_;
  std::unique_ptr<AnyModel> model_;
  Index capacity_;
  std::vector<Reference> references_;
  std::vector<SearchPrompt> search_prompts_;  // of the references
};

void calibrate(const Options& options) {
  options.check_outputs();
  const Checkpoint checkpoint(options.model.path);
  const auto tokenizer = open_tokenizer_for(options.model, checkpoint.config());
  Calibration(options, checkpoint, *tokenizer, encode_prompts(options, checkpoint.config(), *tokenizer)).run();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Finds schedules for dynamic token pruning (arXiv 2407.14057) that are fast and agree with dense inference, and "
      "writes presets for losses of 1 %, 5 % and 10 %. The loss is the share of the dense run's greedy tokens from the "
      "first on that the pruned run would not have chosen (a choice that dense finds half as likely as its own counts "
      "as its own), averaged over the categories that the prompts name; no category loses more than three times the "
      "preset's loss, or one token.",
      "lazyllm-calibrate");
  add_model_options(app, options.model);
  add_path(app, "--data", options.data,
           "prompts: JSON lines (*.jsonl) with a prompt and, if they have them, a category or dataset and the "
           "answer's max_tokens; a text file that is one prompt; or a folder of both. Longer ones than the model "
           "can run lose their middle")
      ->required();
  add_path(app, "--out", options.out,
           "schedule file to write; FILE.log.jsonl beside it keeps what is done, see --resume")
      ->required()
      ->type_name("FILE");
  add_number(app, "--prompts-limit", options.prompts_limit, "prompts to use at most, of each file in turn",
             {.least = 1});
  add_number(app, "--tokens", options.tokens,
             "tokens after each prompt to compare, fewer where the text ends or its max_tokens is less", {.least = 1});
  add_number(app, "--runs", options.runs,
             "work of the search at most, in passes over all prompts; a trial that fails early counts in part. 30 or "
             "more find good schedules",
             {1, 1'000'000});
  app.add_flag("--resume", options.resume,
               "go on with the search that FILE.log.jsonl holds, which is not started anew without this; more --runs "
               "may be given then");
  return run_program(app, argc, argv, [&] { calibrate(options); });
}
