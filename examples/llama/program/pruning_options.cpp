#include "examples/llama/program/pruning_options.hpp"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "examples/llama/checkpoint/mapped_file.hpp"
#include "examples/llama/program/console.hpp"
#include "examples/llama/program/counted.hpp"

namespace llama {
namespace {

/// `"10%", "5%"`, for messages.
std::string names_in(const nlohmann::json& presets) {
  std::string names;
  for (const auto& preset : presets.items()) names += (names.empty() ? "" : ", ") + shown(preset.key());
  return names.empty() ? "none" : names;
}

/// The policies with a name, for the help.
std::string named_policies() {
  std::string text;
  for (const lazyllm::NamedPolicy& policy : lazyllm::named_policies) {
    if (policy.name.empty()) continue;
    text += std::string(policy.name) + (policy.has_schedule() ? "LAYER:KEEP,... (" : " (") +
            std::string(policy.meaning) + "), ";
  }
  return text;
}

struct PresetPlace {
  std::string file;
  std::optional<std::string> name;
};

/// The parts of `FILE` or `FILE#NAME`. A '#' may be in a folder's name, or in that of a file that is there.
PresetPlace preset_place(const std::string& text) {
  const std::size_t slash = text.rfind('/');
  const std::size_t hash = text.find_last_of("/#");
  std::error_code error;  // of a text that can be no file's name
  if (hash == slash || std::filesystem::is_regular_file(text, error)) return {text, std::nullopt};
  return {text.substr(0, hash), text.substr(hash + 1)};
}

}  // namespace

void add_pruning_options(CLI::App& app, PruningOptions& options, ScheduleForms forms) {
  // A preset of a file can hold no larger number, and sums of them fit an Index.
  constexpr NumberRange<Index> any_count{.least = 0, .most = std::numeric_limits<lazyllm::Position>::max()};
  app.add_option(
         "--schedule", options.schedule,
         "auto:SPEEDUPx (a preset for any model with about this ideal speedup, 1 to 4, e.g. auto:2.3x; fewer than 5 "
         "layers may allow less), dense, "
         "LAYER:KEEP,... (after LAYER layers keep the ratio KEEP, above 0 and at most 1, of the tokens, e.g. "
         "9:0.7,19:0.7,28:0.7), " +
             (forms == ScheduleForms::all ? named_policies() : "") +
             "or @FILE or @FILE#NAME: a preset that lazyllm-calibrate wrote. A preset sets the nine options below "
             "where they are not given")
      ->capture_default_str();
  app.add_option("--score", options.score, lazyllm::score_syntax())->default_str("last");
  add_number(app, "--protect-first", options.protect_first, "always keep the first N tokens", any_count)
      ->default_str("0");
  add_number(app, "--protect-last", options.protect_last, "always keep the last N tokens",
             {.least = 1, .most = any_count.most})
      ->default_str("1");
  add_number(
      app, "--max-revived", options.max_revived,
      "revive at most N tokens at each pruning layer of a later prompt's step, the highest-scored ones; of decode "
      "steps, too, without --decode-revived",
      any_count)
      ->default_str("all");
  add_number(app, "--decode-revived", options.decode_revived,
             "in decode steps keep all tokens that have been computed, and revive at most N others at each pruning "
             "layer, instead of pruning as in the prompt",
             any_count);
  add_number(app, "--first-revived", options.first_revived,
             "--decode-revived of the first decode step after a prompt alone", any_count);
  add_number(app, "--continuations", options.continuations,
             "in decode steps revive, of --decode-revived or beyond it, the N tokens that followed earlier places with "
             "the same last tokens, longest match first; with --decode-revived",
             {.least = 0, .most = lazyllm::Continuations::most});
  add_number(app, "--revive-from", options.revive_from,
             "with --decode-revived: where fewer than N layers have run, revive only --continuations, but for a first "
             "step with --first-revived; the layer of the last cut is a good choice",
             any_count)
      ->default_str("0");
  add_number(app, "--min-tokens", options.min_tokens, "prune nothing while a sequence has fewer than N tokens",
             any_count)
      ->default_str("0");
}

std::string schedule_forms(ScheduleForms forms) {
  std::string text = "; the forms are auto:SPEEDUPx, dense, LAYER:KEEP,..., ";
  if (forms == ScheduleForms::all) {
    for (const lazyllm::NamedPolicy& policy : lazyllm::named_policies) {
      if (!policy.name.empty()) text += std::string(policy.name) + (policy.has_schedule() ? "LAYER:KEEP,..., " : ", ");
    }
  }
  return text + "@FILE and @FILE#NAME";
}

lazyllm::AttentionScore read_score(const std::string& text) {
  return read_option("--score", text, "", [&] { return lazyllm::parse_score(text); });
}

std::string preset_file_of(const PruningOptions& options) {
  return options.schedule.starts_with('@') ? preset_place(options.schedule.substr(1)).file : "";
}

PruningOptions resolved(PruningOptions options, Index layers, const lazyllm::LayerWidths& widths) {
  lazyllm::Preset preset;
  if (options.schedule.starts_with('@')) {
    preset = read_preset(options.schedule.substr(1), layers);
    options.schedule = lazyllm::to_text(preset.schedule);
  } else if (lazyllm::names_recommended(options.schedule)) {
    preset = read_option("--schedule", options.schedule, "",
                         [&] { return lazyllm::parse_recommended(options.schedule, layers, widths); });
    options.schedule = lazyllm::to_text(preset.schedule);
  }
  options.score = options.score.value_or(lazyllm::to_text(preset.score));
  options.protect_first = options.protect_first.value_or(preset.protect_first);
  options.protect_last = options.protect_last.value_or(preset.protect_last);
  if (!options.max_revived && preset.max_revived != lazyllm::Selection::unlimited) {
    options.max_revived = preset.max_revived;
  }
  if (!options.first_revived) options.first_revived = preset.first_revived;
  if (!options.continuations) options.continuations = preset.continuations;
  if (!options.revive_from) options.revive_from = preset.revive_from;
  if (!options.decode_revived) options.decode_revived = preset.decode_revived;
  if (!options.min_tokens) options.min_tokens = preset.min_tokens;
  return options;
}

lazyllm::Preset members_of(const PruningOptions& options) {
  return {.score = read_score(*options.score),
          .protect_first = *options.protect_first,
          .protect_last = *options.protect_last,
          .max_revived = options.max_revived.value_or(lazyllm::Selection::unlimited),
          .decode_revived = options.decode_revived,
          .first_revived = options.first_revived,
          .continuations = options.continuations,
          .revive_from = options.revive_from,
          .min_tokens = options.min_tokens};
}

nlohmann::ordered_json to_json(const PruningOptions& options) {
  nlohmann::ordered_json json;
  lazyllm::to_json(json, members_of(options));
  json["schedule"] = options.schedule;
  return json;
}

lazyllm::TokenPruner<lazyllm::AnyPolicy> make_pruner(const PruningOptions& options, Index layers,
                                                     const lazyllm::LayerWidths& widths) {
  const PruningOptions all = resolved(options, layers, widths);
  lazyllm::AnyPolicy policy = read_option("--schedule", all.schedule, schedule_forms(ScheduleForms::all), [&] {
    return lazyllm::parse_policy(all.schedule, layers);  // any that has a text form
  });
  return lazyllm::make_pruner(std::move(policy), members_of(all));
}

void say_if_not_pruned(const PruningOptions& resolved_options, Index prompt_tokens) {
  const Index least = resolved_options.min_tokens.value_or(0);
  if (resolved_options.schedule == "dense" || prompt_tokens >= least) return;
  say("a prompt of {} is not pruned: --min-tokens is {}", counted(prompt_tokens, "token"), least);
}

lazyllm::Preset read_preset(const std::string& file_and_name, Index layers) {
  const auto [path, given_name] = preset_place(file_and_name);
  const nlohmann::json file = parse_json(MappedFile(path).bytes(), path);
  if (!file.is_object()) fail(path, ": the file holds ", shown(file), ", not an object: no preset file");
  const auto member = [&](const char* name) { return file.value(name, nlohmann::json()); };

  if (member("format") != 1 || !member("format").is_number_integer())
    fail(path, ": format ", shown(member("format")), " is not 1: no preset file");
  if (member("layers") != layers) {
    fail(path, ": made for a model with ", shown(member("layers")), " layers, this one has ", layers);
  }
  const nlohmann::json presets = member("presets");
  if (!presets.is_object()) fail(path, ": presets ", shown(presets), " is not an object");
  const nlohmann::json name = given_name ? nlohmann::json(*given_name) : member("default");
  if (!name.is_string()) {
    fail(path, ": default ", shown(name), " names no preset; write FILE#NAME with one of ", names_in(presets));
  }
  const auto found = presets.find(name.get<std::string>());
  if (found == presets.end()) fail(path, ": no preset ", shown(name), "; there are ", names_in(presets));
  try {
    auto preset = found->get<lazyllm::Preset>();
    preset.schedule.check(layers);
    lazyllm::make_pruner(preset);  // which checks what needs another member
    return preset;
  } catch (const std::exception& error) {
    fail(path, ", preset ", shown(name), ": ", plain_message(error));
  }
}

}  // namespace llama
