#pragma once

#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/policy/policies.hpp"
#include "lazyllm/policy/schedule.hpp"
#include "lazyllm/policy/selection.hpp"
#include "lazyllm/policy/wrappers.hpp"
#include "lazyllm/pruner/text.hpp"
#include "lazyllm/pruner/token_pruner.hpp"
#include "lazyllm/score/attention_score.hpp"

namespace lazyllm {

/// How a run prunes, as a file can hold it: one entry of what `lazyllm-calibrate` writes.
struct Preset {
  Schedule schedule = {};                    ///< keep ratios; without points nothing is pruned
  AttentionScore score = {};                 ///< how tokens rank
  Index protect_first = 0;                   ///< positions below it are always kept
  Index protect_last = 1;                    ///< the last tokens, so many, are always kept
  Index max_revived = Selection::unlimited;  ///< at each pruning layer of a step
  /// In decode steps all tokens that have been computed stay, and so many others come back at each pruning layer, see
  /// `KeepComputed`; absent: decode steps prune like the prompt's.
  std::optional<Index> decode_revived = {};
};

/// The pruner that does what `preset` says, with `policy` in place of its schedule.
inline TokenPruner<AnyPolicy> make_pruner(AnyPolicy policy, const Preset& preset) {
  if (preset.decode_revived) policy = KeepComputed<AnyPolicy>{std::move(policy), *preset.decode_revived};
  const ProtectLast<AnyPolicy> last{std::move(policy), preset.protect_last};
  return TokenPruner<AnyPolicy>(ReviveAtMost{ProtectFirst{last, preset.protect_first}, preset.max_revived},
                                preset.score);
}

/// The pruner that does what `preset` says. It throws `invalid_argument` in the first step of a model that does not
/// have the schedule's layers.
inline TokenPruner<AnyPolicy> make_pruner(const Preset& preset) {
  return make_pruner(KeepRatio(preset.schedule), preset);
}

/// Reads `{"schedule": "6:0.5,9:0.2", "score": "mean:8", "protect_first": 4, "protect_last": 8,
/// "max_revived": 16, "decode_revived": 8}`: the schedule as `parse_schedule` has it, the score as `parse_score`. Only
/// the schedule must be there. The member `measured` is ignored: it says what the preset achieved.
///
/// `Json` is `nlohmann::json`, whose `get<Preset>()` finds this function, or a type with the same `is_object`, `items`,
/// `is_string`, `is_number_integer`, `get` and `dump`. Throws `invalid_argument` for an unknown member and for a value
/// of the wrong type or out of range, and leaves `preset` as it was.
template <class Json>
void from_json(const Json& json, Preset& preset) {
  const auto shown = [](const Json& value) { return value.dump().substr(0, 80); };
  const auto text = [&](const std::string& name, const Json& value) {
    if (!value.is_string()) detail::fail("preset: ", name, " ", shown(value), " is not a text");
    return value.template get<std::string>();
  };
  const auto count = [&](const std::string& name, const Json& value, Index lowest) {
    // Compared as a double, in which no integer of the file wraps around.
    constexpr Position highest = std::numeric_limits<Position>::max();
    if (!value.is_number_integer() || value.template get<double>() < static_cast<double>(lowest) ||
        value.template get<double>() > static_cast<double>(highest)) {
      detail::fail("preset: ", name, " ", shown(value), " is out of range: a whole number from ", lowest, " to ",
                   highest);
    }
    return value.template get<Index>();
  };
  if (!json.is_object()) detail::fail("preset: ", shown(json), " is not an object");
  Preset result;
  bool has_schedule = false;
  for (const auto& member : json.items()) {
    const std::string& name = member.key();
    const Json& value = member.value();
    if (name == "schedule") {
      result.schedule = parse_schedule(text(name, value));
      has_schedule = true;
    } else if (name == "score") {
      result.score = parse_score(text(name, value));
    } else if (name == "protect_first") {
      result.protect_first = count(name, value, 0);
    } else if (name == "protect_last") {
      result.protect_last = count(name, value, 1);
    } else if (name == "max_revived") {
      result.max_revived = count(name, value, 0);
    } else if (name == "decode_revived") {
      result.decode_revived = count(name, value, 0);
    } else if (name != "measured") {
      detail::fail(
          "preset: ", name,
          " is not a member; there are schedule, score, protect_first, protect_last, max_revived, decode_revived and "
          "measured");
    }
  }
  if (!has_schedule) detail::fail("preset: the member schedule is missing");
  preset = std::move(result);
}

/// Writes what `from_json` reads.
template <class Json>
void to_json(Json& json, const Preset& preset) {
  json = Json::object();
  json["schedule"] = to_text(preset.schedule);
  json["score"] = to_text(preset.score);
  json["protect_first"] = preset.protect_first;
  json["protect_last"] = preset.protect_last;
  if (preset.max_revived != Selection::unlimited) json["max_revived"] = preset.max_revived;
  if (preset.decode_revived) json["decode_revived"] = *preset.decode_revived;
}

}  // namespace lazyllm
