#pragma once

#include <exception>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "examples/llama/base.hpp"
#include "examples/llama/checkpoint/json.hpp"
#include "examples/llama/library.hpp"
#include "examples/llama/program/command_line.hpp"

namespace CLI {
class App;
}

namespace llama {

/// The program options that say how a run prunes, the same in every program of this host.
struct PruningOptions {
  std::string schedule = "auto:1.5x";
  std::optional<std::string> score = {};     ///< absent: the preset's if `schedule` names one, else `last`
  std::optional<Index> protect_first = {};   ///< absent: the preset's, else 0
  std::optional<Index> protect_last = {};    ///< absent: the preset's, else 1
  std::optional<Index> max_revived = {};     ///< absent: the preset's, else unlimited
  std::optional<Index> decode_revived = {};  ///< absent: the preset's, else decode steps prune like the prompt's
  std::optional<Index> first_revived = {};   ///< absent: the preset's, else `decode_revived`
  std::optional<Index> continuations = {};   ///< absent: the preset's, else none
  std::optional<Index> revive_from = {};     ///< absent: the preset's, else 0
  std::optional<Index> min_tokens = {};      ///< absent: the preset's, else 0
};

/// Which schedules a program takes: those that a preset can hold, or the named policies too.
enum class ScheduleForms { all, preset };

/// Adds `--schedule`, `--score`, `--protect-first`, `--protect-last`, `--max-revived`,
/// `--decode-revived`, `--first-revived`, `--continuations`, `--revive-from` and `--min-tokens`. `options` must outlive
/// the parsing. The help offers `forms`.
void add_pruning_options(CLI::App& app, PruningOptions& options, ScheduleForms forms = ScheduleForms::all);

/// What `--schedule` takes, for an error.
std::string schedule_forms(ScheduleForms forms);

/// What `read` returns. Where it throws, `std::invalid_argument` with its message after `option` and `text`, and before
/// `allowed`.
template <class Read>
auto read_option(std::string_view option, const std::string& text, std::string_view allowed, const Read& read) {
  try {
    return read();
  } catch (const std::exception& error) {
    fail(option, " ", shown(text), ": ", plain_message(error), allowed);
  }
}

/// The score that `--score` names. Throws `std::invalid_argument` for a text that is none.
lazyllm::AttentionScore read_score(const std::string& text);

/// The file that a preset is read from; empty if there is none.
std::string preset_file_of(const PruningOptions& options);

/// The same options without anything left open: a preset's values in place of its name, defaults in place of what is
/// absent. Throws `file_error` for a preset file that cannot be read, `std::invalid_argument` for one that does not
/// have the preset or was made for another number of layers than `layers`, and as `lazyllm::recommended`.
///
/// `widths` are the model's, for a recommended preset.
PruningOptions resolved(PruningOptions options, Index layers, const lazyllm::LayerWidths& widths = {});

/// What options that are `resolved` say beside the schedule, which need not be one that a preset can hold. Throws
/// `std::invalid_argument` for a score that is none.
lazyllm::Preset members_of(const PruningOptions& options);

/// Options that are `resolved`, as the programs write them to JSON: the members of a preset. Throws like `members_of`.
nlohmann::ordered_json to_json(const PruningOptions& options);

/// The pruner for a model of `layers` layers. Throws as `resolved`, and `std::invalid_argument` for options out of
/// range.
lazyllm::TokenPruner<lazyllm::AnyPolicy> make_pruner(const PruningOptions& options, Index layers,
                                                     const lazyllm::LayerWidths& widths = {});

/// Says on standard error that a prompt is too short for `--min-tokens` to be pruned, where the schedule would.
void say_if_not_pruned(const PruningOptions& resolved_options, Index prompt_tokens);

/// The widths of a model's layers. `Config` is a `ModelConfig`, or has the same members.
template <class Config>
lazyllm::LayerWidths widths_of(const Config& config) {
  return {config.hidden_size, config.heads, config.kv_heads, config.head_dim, config.intermediate_size};
}

/// Reads the preset that `FILE` or `FILE#NAME` names for a model of `layers` layers; without a name it is the file's
/// default. A '#' in a folder's name, or in that of a file that is there, separates nothing. Throws as `resolved`.
lazyllm::Preset read_preset(const std::string& file_and_name, Index layers);

}  // namespace llama
