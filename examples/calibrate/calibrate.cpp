#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "examples/calibrate/agreement.hpp"
#include "examples/calibrate/outcome_log.hpp"
#include "examples/calibrate/preset_file.hpp"
#include "examples/calibrate/prompts.hpp"
#include "examples/calibrate/search.hpp"
#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/checkpoint/json.hpp"
#include "examples/llama/files/output_file.hpp"
#include "examples/llama/files/printable.hpp"
#include "examples/llama/model/any_model.hpp"
#include "examples/llama/model/operations.hpp"
#include "examples/llama/program/brief_spinning.hpp"
#include "examples/llama/program/command_line.hpp"
#include "examples/llama/program/console.hpp"
#include "examples/llama/program/counted.hpp"
#include "examples/llama/program/cut_middle.hpp"
#include "examples/llama/program/fingerprint.hpp"
#include "examples/llama/program/interleaved.hpp"
#include "examples/llama/program/model_files.hpp"
#include "examples/llama/program/model_options.hpp"
#include "examples/llama/program/progress.hpp"
#include "examples/llama/program/pruning_options.hpp"
#include "examples/llama/program/timing.hpp"
#include "examples/llama/tokenizer/chat_template.hpp"

namespace {

using namespace llama;

struct Options {
  ModelOptions model;
  std::string data, out, follow_up;
  Index prompts_limit = 32;
  Index prompt_tokens = 0;
  Index tokens = 16;
  Index runs = 64;
  Index minutes = 60;
  Index decode_rows = SharedMembers{}.decode_rows;
  std::vector<double> speedups = {1.5, 2.34, 3};
  PruningOptions pruning = {.schedule = ""};  // of a preset to measure; without a schedule, of a search
  bool chat = false;
  bool resume = false;

  std::string log() const { return out + ".log.jsonl"; }

  /// Throws `file_error` if an output would be written over another one or over what is read, or the next run would
  /// read it.
  void check_outputs() const {
    std::vector<NamedFile> inputs = named_files("--model", model_files(model.path, model.tokenizer));
    inputs.push_back({"--schedule", preset_file_of(pruning)});
    check_apart_from_prompts({{"--out", out}, {"the log of --out", log()}}, std::move(inputs), data);
  }
};

struct EncodedPrompt {
  std::vector<TokenId> tokens;
  Index most = 0;  // tokens to compare
  bool held_out = false;
};

/// The first prompts, cut in the middle where they are too long or, with the answer, do not fit the model.
std::vector<EncodedPrompt> encode_prompts(const Options& options, const ModelConfig& config, const Tokenizer& tokenizer,
                                          Index follow_up) {
  const Index turns = follow_up > 0 ? 2 : 1;
  const Index room = longest_sequence(config) - follow_up;
  if (room < turns + 2) {
    fail("--follow-up has ", follow_up, " tokens, out of range 1 to ", longest_sequence(config) - turns - 2,
         ": what the model can run, less a prompt and two answers");
  }
  const Index longest = options.tokens > room / turns ? 0 : room - turns * options.tokens;
  if (longest < 2) {
    fail("--tokens ", options.tokens, " is out of range 1 to ", std::max<Index>(0, (room - 2) / turns),
         ": what the model can run, less a prompt", follow_up > 0 ? " and the --follow-up" : "");
  }
  const Index most = options.prompt_tokens == 0 ? longest : std::min(longest, options.prompt_tokens);
  std::vector<Prompt> prompts = read_prompts(options.data);
  prompts.resize(std::min(prompts.size(), static_cast<std::size_t>(options.prompts_limit)));
  if (prompts.size() < 2) {
    fail("--data ", options.data, " has ", prompts.size(), " prompt to use, at least 2 are needed: half is held out");
  }
  const std::vector<bool> is_held_out = held_out(prompts);
  std::optional<ChatTemplate> chat;
  if (options.chat) chat = open_chat_template(options.model.tokenizer_path());
  std::vector<EncodedPrompt> encoded;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::string& text = prompts[i].text;
    encoded.push_back({cut_middle(chat ? chat->encode(tokenizer, text) : tokenizer.encode(text, true), most),
                       std::min(options.tokens, prompts[i].max_tokens.value_or(options.tokens)), is_held_out[i]});
  }
  return encoded;
}

/// What the options say for all presets of a search. Throws `std::invalid_argument` for a score that is none.
SharedMembers shared_members(const PruningOptions& options, Index decode_rows) {
  SharedMembers shared{
      .protect_first = options.protect_first, .protect_last = options.protect_last, .decode_rows = decode_rows};
  if (options.score) shared.score = read_score(*options.score);
  if (options.max_revived) shared.max_revived = *options.max_revived;
  shared.decode_revived = options.decode_revived;
  if (options.first_revived) shared.first_revived = options.first_revived;
  if (options.continuations) shared.continuations = options.continuations;
  shared.revive_from = options.revive_from;
  return shared;
}

/// The preset to measure; null where presets are to be searched. Throws `std::invalid_argument` for what `--schedule`
/// and its members do not take.
std::optional<lazyllm::Preset> given_preset(const Options& options, const ModelConfig& config) {
  if (options.pruning.schedule.empty()) return std::nullopt;
  const PruningOptions pruning = resolved(options.pruning, config.layers, widths_of(config));
  lazyllm::Preset preset = members_of(pruning);
  preset.schedule = read_option("--schedule", pruning.schedule, schedule_forms(ScheduleForms::preset), [&] {
    auto schedule = lazyllm::parse_schedule(pruning.schedule);
    schedule.check(config.layers);
    return schedule;
  });
  make_pruner(preset);  // which checks the members
  return preset;
}

/// What the options have searched, but for how a preset is run. Throws as `shared_members`, and `check_search` where
/// there is no preset to measure instead.
SearchProblem search_problem(const Options& options, const ModelConfig& config,
                             const std::vector<EncodedPrompt>& prompts) {
  std::vector<Index> lengths;
  for (const EncodedPrompt& prompt : prompts) lengths.push_back(std::ssize(prompt.tokens));
  const auto operations = [config, lengths](const lazyllm::Preset& preset) {
    double sum = 0;
    for (const Index length : lengths) sum += prefill_operations(config, length, preset);
    return sum;
  };
  SearchProblem problem{
      .layers = config.layers,
      .prompts = std::ranges::count(prompts, false, &EncodedPrompt::held_out),
      .shared = shared_members(options.pruning, options.decode_rows),
      .ideal_speedup = [operations, dense = operations({})](const auto& preset) { return dense / operations(preset); },
      .evaluate = {}};
  if (options.pruning.schedule.empty()) {
    const Index least = std::ssize(options.speedups);
    if (options.runs < least) {
      fail("--runs ", options.runs, " is out of range: at least ", least, ", one for each of --speedups");
    }
    check_search(problem, options.speedups, options.runs * problem.prompts);
  }
  return problem;
}

/// All that a search changes, in one line.
std::string in_words(const lazyllm::Preset& preset) {
  std::string text = fmt::format("{} {} protects {} + {}", lazyllm::to_text(preset.schedule),
                                 lazyllm::to_text(preset.score), preset.protect_first, preset.protect_last);
  if (preset.decode_revived) text += fmt::format(" revives {}", *preset.decode_revived);
  if (preset.revive_from) text += fmt::format(" from {} on", *preset.revive_from);
  return text;
}

class Calibration {
 public:
  Calibration(const Options& options, const Checkpoint& checkpoint, const Tokenizer& tokenizer,
              std::vector<EncodedPrompt> prompts, Tokens follow_up)
      : options_(options),
        name_(std::filesystem::canonical(options.model.path).filename().string()),
        given_(given_preset(options, checkpoint.config())),
        min_tokens_(given_ ? std::exchange(given_->min_tokens, std::nullopt)
                           : options.pruning.min_tokens.value_or(lazyllm::recommended_min_tokens)),
        problem_(search_problem(options, checkpoint.config(), prompts)),
        out_(options.out),
        log_(options.log(), options.resume),
        model_(open_model(checkpoint.config(), weights_of(checkpoint), options.model.placement)),
        capacity_(options.tokens) {
    const Index more = follow_up.empty() ? options.tokens : 2 * options.tokens + std::ssize(follow_up);
    for (const EncodedPrompt& prompt : prompts) capacity_ = std::max(capacity_, std::ssize(prompt.tokens) + more);
    const std::vector<TokenId> stop = stop_tokens(model_->config(), &tokenizer);
    std::stable_partition(prompts.begin(), prompts.end(), [](const EncodedPrompt& prompt) { return !prompt.held_out; });
    log_.start(settings(prompts, follow_up), std::ssize(prompts), checkpoint.config().layers);
    const auto dense = model_->dense(capacity_);
    const Clock::time_point start = Clock::now();
    ProgressBar progress(std::ssize(prompts));
    for (EncodedPrompt& prompt : prompts) {
      references_.push_back(make_reference(*dense, std::move(prompt.tokens), prompt.most, stop, follow_up));
      progress.advance(false, "dense");
    }
    dense_ms_ = milliseconds_since(start) / static_cast<double>(references_.size());
    Fingerprint answers;
    for (const Reference& reference : references_) {
      for (const Tokens tokens :
           {Tokens(reference.first_answer), Tokens(reference.follow_up), Tokens(reference.tokens)}) {
        answers.add(bytes_of(tokens));
      }
    }
    log_.compare_with(answers.value());
  }

  void run() {
    const Index most = (given_ ? 1 : options_.runs) * problem_.prompts;
    ProgressBar progress(most + measurements());
    std::vector<NamedPreset> presets;
    for (Candidate& found : given_ ? measured(progress) : search(progress, most)) {
      const std::string name =
          given_ ? fmt::format("{:.2f}x", found.ideal_speedup) : fmt::format("{}x", options_.speedups[presets.size()]);
      std::vector<Outcome> outcomes;
      for (Index prompt = problem_.prompts; prompt < std::ssize(references_); ++prompt) {
        outcomes.push_back(outcome(found.preset, prompt, progress, "held out, " + name));
      }
      decoder_.reset();  // before two others take memory
      current_.clear();
      const double ttft = ttft_speedup(found.preset, progress, "timed, " + name);
      found.preset.min_tokens = min_tokens_;
      presets.push_back({name, std::move(found), summarize(outcomes), ttft});
    }
    progress.clear();
    const Index least = min_tokens_.value_or(0);
    const Index shorter = std::ranges::count_if(
        references_, [least](const Reference& reference) { return std::ssize(reference.prompt) < least; });
    if (shorter > 0) {
      say("{} of {} are shorter than --min-tokens {}: presets of the file do not prune such ones", shorter,
          counted(std::ssize(references_), "prompt"), least);
    }
    out_.commit(json_text(preset_file(name_, model_->config().layers, presets, conditions()), 2) + "\n");
    for (const NamedPreset& preset : presets) print_text(described(preset));
  }

 private:
  Conditions conditions() const {
    const auto length = [](const Reference& reference) { return std::ssize(reference.prompt); };
    return {.prompt_tokens = length(*std::ranges::max_element(references_, {}, length)),
            .chat = options_.chat,
            .dtype = options_.model.placement.dtype,
            .int8 = options_.model.placement.int8,
            .follow_up = options_.follow_up};
  }

  static std::string_view bytes_of(Tokens tokens) {
    return {reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()};
  }

  /// What outcomes depend on, but for the dense answers.
  nlohmann::ordered_json settings(std::span<const EncodedPrompt> prompts, Tokens follow_up) const {
    Fingerprint fingerprint;
    for (const EncodedPrompt& prompt : prompts) {
      fingerprint.add(bytes_of(prompt.tokens));
      fingerprint.add(fmt::format("{} {}", prompt.most, prompt.held_out));
    }
    fingerprint.add(bytes_of(follow_up));
    nlohmann::ordered_json json = {
        {"model", options_.model.path},
        {"model_fingerprint", fingerprint_of(model_files(options_.model.path, options_.model.tokenizer))},
        {"device", options_.model.placement.device},
        {"dtype", options_.model.placement.dtype},
        {"prompts", prompts.size()},
        {"prompt_tokens", options_.prompt_tokens},
        {"tokens", options_.tokens},
        {"prompts_fingerprint", fingerprint.value()}};
    if (options_.model.placement.int8) json["weights"] = "int8";
    return json;
  }

  Outcome outcome(const lazyllm::Preset& preset, Index prompt, ProgressBar& progress, const std::string& label) {
    const std::string text = label + best_ + ", now " + in_words(preset);
    if (const Outcome* const earlier = log_.find(preset, prompt)) {
      progress.advance(true, text);
      return *earlier;
    }
    const Clock::time_point start = Clock::now();
    if (std::string key = nlohmann::json(preset).dump(); key != current_) {
      decoder_.reset();  // before the next one takes its memory
      decoder_ = model_->lazy(capacity_, make_pruner(preset));
      current_ = std::move(key);
    }
    const Outcome result = agree(*decoder_, references_[static_cast<std::size_t>(prompt)]);
    log_.add(preset, prompt, result);
    progress.advance(false, text);
    pruned_ms_ += milliseconds_since(start);
    ++pruned_;
    return result;
  }

  /// The preset that is given, in place of those that a search would find.
  std::vector<Candidate> measured(ProgressBar& progress) {
    std::vector<Outcome> outcomes;
    for (Index prompt = 0; prompt < problem_.prompts; ++prompt) {
      outcomes.push_back(outcome(*given_, prompt, progress, "given"));
    }
    return {{*given_, problem_.ideal_speedup(*given_), summarize(outcomes)}};
  }

  std::vector<Candidate> search(ProgressBar& progress, Index most) {
    Index left = most;
    problem_.evaluate = [&](const lazyllm::Preset& preset, Index prompt) {
      --left;
      return outcome(preset, prompt, progress, "search");
    };
    problem_.affordable = [&] {
      const Index runs = affordable();
      progress.expect(std::min(runs, left) + measurements());
      return runs;
    };
    problem_.found = [&](const Candidate& better) {
      best_ = fmt::format(", best at {:.2f}x: KL {:.4f}, top-1 {:.1f} % by {}", better.ideal_speedup,
                          better.agreement.kl, 100 * better.agreement.top1, in_words(better.preset));
    };
    bool out_of_time = false;
    problem_.out_of_time = [&] { out_of_time = true; };
    std::vector<Candidate> found = llama::search(problem_, options_.speedups, most);
    best_.clear();
    if (out_of_time) {
      progress.clear();
      say("--minutes {} allowed {} of {} of a prompt; --resume with more minutes goes on", options_.minutes,
          most - left, counted(most, "run"));
    }
    return found;
  }

  /// How many times a prompt can be run before what follows the search must begin.
  Index affordable() const {
    // At first a pruned run counts as a dense one: its prompt is faster, its decode steps are not.
    const double run_ms = pruned_ > 0 ? pruned_ms_ / static_cast<double>(pruned_) : dense_ms_;
    const double after_ms = static_cast<double>(options_.speedups.size()) *
                            (static_cast<double>(held_out_prompts()) * run_ms +
                             static_cast<double>(timed_prompts() * timed_repeats) * (dense_ms_ + run_ms));
    const double left_ms = 60'000.0 * static_cast<double>(options_.minutes) - milliseconds_since(start_) - after_ms;
    return static_cast<Index>(std::clamp(left_ms / std::max(run_ms, 1e-3), 0.0, 1e9));
  }

  /// Items of progress after the outcomes that choose presets.
  Index measurements() const {
    return (given_ ? 1 : std::ssize(options_.speedups)) * (held_out_prompts() + timed_prompts());
  }

  Index held_out_prompts() const { return std::ssize(references_) - problem_.prompts; }

  Index timed_prompts() const { return std::min<Index>(3, std::ssize(references_)); }

  /// Of dense and pruned prefills in turn: medians of each prompt, of a few prompts.
  double ttft_speedup(const lazyllm::Preset& preset, ProgressBar& progress, const std::string& label) const {
    if (preset.schedule.points().empty()) return 1;
    const Index prompts = timed_prompts();
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
          timed_repeats, [&] { return prefill_ms(*dense); }, [&] { return prefill_ms(*lazy); });
      dense_ms += median(dense_times);
      lazy_ms += median(lazy_times);
      progress.advance(false, label);
    }
    return dense_ms / lazy_ms;
  }

  static std::string described(const NamedPreset& named) {
    const auto figures = [](const Agreement& agreement) {
      return fmt::format("KL {:.4f} ({:.4f} to {:.4f}) nats, top-1 {:.1f} % ({:.1f} to {:.1f}) of {} after {}",
                         agreement.kl, agreement.kl_interval.low, agreement.kl_interval.high, 100 * agreement.top1,
                         100 * agreement.top1_interval.low, 100 * agreement.top1_interval.high,
                         counted(agreement.tokens, "token"), counted(agreement.prompts, "prompt"));
    };
    return fmt::format("{}: {}\n", named.name, in_words(named.candidate.preset)) +
           fmt::format("  held out: {}\n  searched: {}\n", figures(named.held_out),
                       figures(named.candidate.agreement)) +
           fmt::format("  TTFT speedup {:.2f}x, ideal by operation count {:.2f}x\n", named.ttft_speedup,
                       named.candidate.ideal_speedup);
  }

  static constexpr Index timed_repeats = 3;

  Clock::time_point start_ = Clock::now();
  Options options_;
  std::string name_;  // of the model; taken first: its folder may have another name at the end
  std::optional<lazyllm::Preset> given_;
  std::optional<Index> min_tokens_;  // of the presets in the file; what is measured prunes prompts of any length
  SearchProblem problem_;
  OutputFile out_;  // before the weights are loaded: a path that cannot be written is an error then
  OutcomeLog log_;  // after the options are checked: a wrong one must leave no log
  std::unique_ptr<AnyModel> model_;
  Index capacity_;
  std::vector<Reference> references_;  // of the prompts to search with; then of those that are held out
  std::string current_;                // preset of the decoder
  std::unique_ptr<AnyDecoder> decoder_;
  std::string best_;      // in words
  double dense_ms_ = 0;   // of a prompt and its answer, on average
  double pruned_ms_ = 0;  // of those below
  Index pruned_ = 0;      // prompts with their answers that were run pruned
};

void calibrate(const Options& options) {
  options.check_outputs();
  const Checkpoint checkpoint(options.model.path);
  const auto tokenizer = open_tokenizer_for(options.model, checkpoint.config());
  const std::vector<TokenId> follow_up = tokenizer->encode(options.follow_up, false);
  Calibration(options, checkpoint, *tokenizer,
              encode_prompts(options, checkpoint.config(), *tokenizer, std::ssize(follow_up)), follow_up)
      .run();
}

}  // namespace

int main(int argc, char** argv) {
  spin_briefly(argv);
  Options options;
  CLI::App app(
      "Finds schedules for dynamic token pruning (arXiv 2407.14057) that agree with dense inference: for each speedup "
      "by operation count the preset with the smallest KL divergence of the next token's distribution, teacher-forced "
      "on the dense run's greedy tokens. Every second prompt of each category is held out of the search, and its "
      "figures go into the preset. Members of a preset that are given, such as --score, hold for all presets of the "
      "search. With --schedule nothing is searched: that preset is measured in the same way. --min-tokens goes into "
      "the file alone: prompts of any length are pruned here.",
      "lazyllm-calibrate");
  add_model_options(app, options.model);
  add_path(app, "--data", options.data,
           "prompts: JSON lines (*.jsonl) with a prompt and, if they have it, the answer's max_tokens; a text file "
           "that is one prompt; or a folder of both. Longer ones than the model "
           "can run lose their middle")
      ->required();
  add_path(app, "--out", options.out, "preset file to write; FILE.log.jsonl beside it keeps what is done, see --resume")
      ->required()
      ->type_name("FILE");
  add_number(app, "--prompts-limit", options.prompts_limit, "prompts to use at most, of each file in turn",
             {.least = 1});
  add_number(app, "--prompt-tokens", options.prompt_tokens,
             "cut longer prompts in the middle; 0: what the model can run", {.least = 0});
  add_chat_option(app, options.chat);
  app.add_option("--follow-up", options.follow_up,
                 "compare the answers to this second prompt, which follows the dense run's answer to the first. --chat "
                 "does not apply to it: write the template's text around it");
  add_pruning_options(app, options.pruning, ScheduleForms::preset);
  const SharedMembers shared;
  const auto of_search = [](Index value) { return fmt::format("of a search {}", value); };
  for (const auto& [option, value] : {std::pair("--schedule", std::string("search")),
                                      {"--score", "searched"},
                                      {"--protect-first", "searched"},
                                      {"--protect-last", "searched"},
                                      {"--max-revived", of_search(shared.max_revived)},
                                      {"--decode-revived", "searched"},
                                      {"--first-revived", of_search(*shared.first_revived)},
                                      {"--continuations", of_search(*shared.continuations)},
                                      {"--min-tokens", of_search(lazyllm::recommended_min_tokens)}}) {
    app.get_option(option)->default_str(value);
  }
  add_numbers(app, "--speedups", options.speedups, "ideal speedups of the presets, ascending", {1.01, 20.0})
      ->excludes("--schedule");
  add_number(app, "--tokens", options.tokens,
             "tokens after each prompt to compare, fewer where the text ends or its max_tokens is less", {.least = 1});
  add_number(app, "--runs", options.runs,
             "work of the search at most, in passes over the prompts that it searches with; a trial that fails early "
             "counts in part. 20 for each speedup find good schedules",
             {1, 1'000'000})
      ->excludes("--schedule");
  add_number(
      app, "--minutes", options.minutes,
      "time of a search at most, with all that is measured before and after it: it tries less where --runs would "
      "take longer, at least one schedule for each of --speedups",
      {0, 100'000})
      ->excludes("--schedule");
  add_number(app, "--decode-rows", options.decode_rows,
             "of a search: rows that a decode step may have, the new token's and those that it revives but for "
             "--continuations. The pruning layers share them, or the last one has them all, as agrees better. So many "
             "as take hardly longer than one row",
             {1, 256})
      ->excludes("--schedule")
      ->excludes("--decode-revived");
  app.add_flag("--resume", options.resume,
               "go on with the search that FILE.log.jsonl holds, which is not started anew without this; more --runs "
               "and --minutes may be given then, and with less of them it may find less");
  return run_program(app, argc, argv, [&] { calibrate(options); });
}
