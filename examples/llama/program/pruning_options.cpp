#include "examples/llama/program/pruning_options.hpp"

#include <CLI/CLI.hpp>

#include "examples/llama/checkpoint/json.hpp"
#include "examples/llama/checkpoint/mapped_file.hpp"
#include "examples/llama/program/command_line.hpp"

namespace llama {
namespace {

/// `"10%", "5%"`, for messages.
std::string names_in(const nlohmann::json& presets) {
  std::string names;
  for (const auto& preset : presets.items()) names += (names.empty() ? "" : ", ") + shown(preset.key());
  return names.empty() ? "none" : names;
}

}  // namespace

void add_pruning_options(CLI::App& app, PruningOptions& options) {
  app.add_option(
         "--schedule", options.schedule,
         "dense, paper or LAYER:KEEP,... (after LAYER layers keep the share KEEP, above 0 and at most 1, of the "
         "tokens, e.g. 9:0.7,19:0.7,28:0.7); in front of a list, mass@ keeps the share KEEP of the attention, static@ "
         "prunes once and revives "
         "nothing; or @FILE or @FILE#NAME: a preset that lazyllm-calibrate "
         "wrote, which sets the three options below where they are not given")
      ->capture_default_str();
  app.add_option("--score", options.score,
                 "last, or mean:N or max:N over the last N tokens; then any of +layers (add up over layers) and "
                 "+pool:W (highest of W neighbours, W odd)")
      ->default_str("last");
  add_number(app, "--protect-first", options.protect_first, "always keep the first N tokens", {.least = 0})
      ->default_str("0");
  add_number(app, "--protect-last", options.protect_last, "always keep the last N tokens", {.least = 1})
      ->default_str("1");
}

std::string schedule_file_of(const PruningOptions& options) {
  return options.schedule.starts_with('@') ? options.schedule.substr(1, options.schedule.rfind('#') - 1) : "";
}

PruningOptions resolved(PruningOptions options, Index layers) {
  lazyllm::Preset preset;
  if (options.schedule.starts_with('@')) {
    preset = read_preset(options.schedule.substr(1), layers);
    options.schedule = nlohmann::json(preset).at("schedule");
  }
  options.score = options.score.value_or(preset.score.text());
  options.protect_first = options.protect_first.value_or(preset.protect_first);
  options.protect_last = options.protect_last.value_or(preset.protect_last);
  return options;
}

lazyllm::TokenPruner<lazyllm::AnyPolicy> make_pruner(const PruningOptions& options, Index layers) {
  const PruningOptions all = resolved(options, layers);
  lazyllm::AnyPolicy policy =
      lazyllm::ProtectLast<lazyllm::AnyPolicy>{parse_policy(all.schedule, layers), *all.protect_last};
  policy = lazyllm::ProtectFirst<lazyllm::AnyPolicy>{std::move(policy), *all.protect_first};
  return lazyllm::TokenPruner<lazyllm::AnyPolicy>(std::move(policy), lazyllm::AttentionScore::parse(*all.score));
}

lazyllm::AnyPolicy parse_policy(std::string_view text, Index layers) {
  if (text == "paper") return lazyllm::PaperPolicy();
  const std::size_t at = text.find('@');
  const std::string_view kind = at == std::string_view::npos ? "" : text.substr(0, at);
  lazyllm::Schedule schedule = lazyllm::Schedule::parse(at == std::string_view::npos ? text : text.substr(at + 1));
  schedule.check(layers);
  if (at != std::string_view::npos && schedule.points().empty()) {
    fail("schedule '", text, "': '", kind, "' needs a list of LAYER:KEEP, not dense");
  }
  if (at == std::string_view::npos) return lazyllm::KeepRatio(std::move(schedule));
  if (kind == "mass") return lazyllm::KeepTopP(std::move(schedule));
  if (kind == "static") return lazyllm::StaticPruning(std::move(schedule));
  fail("schedule '", text, "': '", kind, "' is not one of mass and static");
}

lazyllm::Preset read_preset(const std::string& file_and_name, Index layers) {
  const std::size_t hash = file_and_name.rfind('#');
  const std::string path = file_and_name.substr(0, hash);
  const nlohmann::json file = parse_json(MappedFile(path).bytes(), path);
  if (!file.is_object()) fail(path, ": the file holds ", shown(file), ", not an object: no schedule file");
  const auto member = [&](const char* name) { return file.value(name, nlohmann::json()); };

  if (member("format") != 1 || !member("format").is_number_integer())
    fail(path, ": format ", shown(member("format")), " is not 1: no schedule file");
  if (member("layers") != layers) {
    fail(path, ": made for a model with ", shown(member("layers")), " layers, this one has ", layers);
  }
  const nlohmann::json presets = member("presets");
  if (!presets.is_object()) fail(path, ": presets ", shown(presets), " is not an object");
  const nlohmann::json name =
      hash == std::string::npos ? member("default") : nlohmann::json(file_and_name.substr(hash + 1));
  if (!name.is_string()) {
    fail(path, ": default ", shown(name), " names no preset; write FILE#NAME with one of ", names_in(presets));
  }
  const auto found = presets.find(name.get<std::string>());
  if (found == presets.end()) fail(path, ": no preset ", shown(name), "; there are ", names_in(presets));
  try {
    const auto preset = found->get<lazyllm::Preset>();
    preset.schedule.check(layers);
    return preset;
  } catch (const std::exception& error) {
    fail(path, ", preset ", shown(name), ": ", plain_message(error));
  }
}

}  // namespace llama
