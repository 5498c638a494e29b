#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>
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
  Schedule schedule = {};     ///< keep ratios; without points nothing is pruned
  AttentionScore score = {};  ///< how tokens rank
  Index protect_first = 0;    ///< positions below it are always kept
  Index protect_last = 1;     ///< the last `protect_last` tokens are always kept; 0 is as 1
  /// The most tokens that are revived at each pruning layer, in the step of a second or later prompt, and in decode
  /// steps where `decode_revived` is absent.
  Index max_revived = Selection::unlimited;
  /// In decode steps all tokens that have been computed stay, and this number of others is revived at each pruning
  /// layer, see `KeepComputed`; absent: decode steps prune like the prompt's.
  std::optional<Index> decode_revived = {};
  std::optional<Index> first_revived = {};  ///< the same in the first decode step after a prompt; absent: as later
  /// In decode steps, so many of the tokens that followed the last ones earlier are revived in any case, see
  /// `Continuations`; absent: none.
  std::optional<Index> continuations = {};
  /// In decode steps, pruning layers after fewer layers than this revive continuations only, see `KeepComputed`;
  /// absent: 0.
  std::optional<Index> revive_from = {};
  std::optional<Index> min_tokens = {};  ///< while a sequence has fewer, nothing is pruned, see `MinTokens`; absent: 0
};

namespace detail {

/// Calls `visit(name, member)` for each member of a preset that a file has. Counts are at least 0.
template <class AnyPreset, class Visit>
void visit_members(AnyPreset& preset, const Visit& visit) {
  visit("schedule", preset.schedule);
  visit("score", preset.score);
  visit("protect_first", preset.protect_first);
  visit("protect_last", preset.protect_last);
  visit("max_revived", preset.max_revived);
  visit("decode_revived", preset.decode_revived);
  visit("first_revived", preset.first_revived);
  visit("continuations", preset.continuations);
  visit("revive_from", preset.revive_from);
  visit("min_tokens", preset.min_tokens);
}

}  // namespace detail

/// The pruner that does what `preset` says, with `policy` in place of its schedule. Throws `invalid_argument` for a
/// count below its range, for `first_revived`, `continuations` or `revive_from` without `decode_revived`, and for an
/// empty policy.
inline TokenPruner<AnyPolicy> make_pruner(AnyPolicy policy, const Preset& preset) {
  if (!policy) detail::fail("make_pruner: the policy is empty");
  detail::visit_members(preset, [](const char* name, const auto& member) {
    [[maybe_unused]] const auto check = [name](Index count) {
      if (count < 0) detail::fail("preset: ", name, " ", count, " is out of range, at least 0");
    };
    using Member = std::remove_cvref_t<decltype(member)>;
    if constexpr (std::is_same_v<Member, Index>) check(member);
    if constexpr (std::is_same_v<Member, std::optional<Index>>) check(member.value_or(0));
  });
  policy = ReviveAtMost<AnyPolicy>{std::move(policy), preset.max_revived};
  if (preset.min_tokens) policy = MinTokens<AnyPolicy>{std::move(policy), *preset.min_tokens};
  if (preset.decode_revived) {
    policy = KeepComputed<AnyPolicy>{std::move(policy), *preset.decode_revived, preset.first_revived,
                                     preset.continuations.value_or(0), preset.revive_from.value_or(0)};
  } else if (preset.first_revived) {
    detail::fail("preset: first_revived ", *preset.first_revived, " needs decode_revived");
  } else if (preset.continuations) {
    detail::fail("preset: continuations ", *preset.continuations, " need decode_revived");
  } else if (preset.revive_from) {
    detail::fail("preset: revive_from ", *preset.revive_from, " needs decode_revived");
  }
  const ProtectLast<AnyPolicy> last{std::move(policy), preset.protect_last};
  return TokenPruner<AnyPolicy>(ProtectFirst{last, preset.protect_first}, preset.score);
}

/// The pruner that does what `preset` says. It throws `invalid_argument` in the first step of a model that does not
/// have the schedule's layers; with one layer nothing can be pruned, and the schedule is not read.
inline TokenPruner<AnyPolicy> make_pruner(const Preset& preset) {
  return make_pruner(KeepRatio(preset.schedule), preset);
}

namespace detail {

/// A value as messages show it.
template <class Json>
std::string shown(const Json& value) try {
  return value.dump().substr(0, 80);
} catch (const std::bad_alloc&) {
  throw;
} catch (const std::exception&) {
  return "with a text that is not UTF-8";
}

/// Reads the member `name` of a preset.
template <class Member, class Json>
Member read_member(const std::string& name, const Json& value) {
  if constexpr (std::is_same_v<Member, Schedule> || std::is_same_v<Member, AttentionScore>) {
    if (!value.is_string()) fail("preset: ", name, " ", shown(value), " is not a text");
    const auto text = value.template get<std::string>();
    if constexpr (std::is_same_v<Member, Schedule>) {
      return parse_schedule(text);
    } else {
      return parse_score(text);
    }
  } else {
    // Compared as a double, in which no integer of the file wraps around.
    if (!value.is_number_integer() || value.template get<double>() < 0 ||
        value.template get<double>() > static_cast<double>(most_tokens)) {
      fail("preset: ", name, " ", shown(value), " is out of range: a whole number from 0 to ", most_tokens);
    }
    return value.template get<Index>();
  }
}

}  // namespace detail

/// Reads an object such as this one:
/// ```json
/// {"schedule": "6:0.5,9:0.2", "score": "mean:8", "protect_first": 4, "protect_last": 8, "max_revived": 16,
///  "decode_revived": 8, "first_revived": 32, "continuations": 4, "revive_from": 9, "min_tokens": 384}
/// ```
/// The schedule is as `parse_schedule` has it, the score as `parse_score`. Only the schedule must be there. The member
/// `measured` is ignored: it says what the preset achieved.
///
/// `Json` is `nlohmann::json`, whose `get<Preset>()` finds this function, or a type with the same `is_object`, `items`,
/// `is_string`, `is_number_integer`, `get` and `dump`. Throws `invalid_argument` for an unknown member and for a value
/// of the wrong type or out of range, and leaves `preset` as it was.
template <class Json>
void from_json(const Json& json, Preset& preset) {
  if (!json.is_object()) detail::fail("preset: ", detail::shown(json), " is not an object");
  Preset result;
  bool has_schedule = false;
  for (const auto& item : json.items()) {
    const std::string& name = item.key();
    has_schedule |= name == "schedule";
    bool known = name == "measured";
    std::string names;
    detail::visit_members(result, [&](const char* member_name, auto& member) {
      names.append(names.empty() ? "" : ", ").append(member_name);
      if (name != member_name) return;
      known = true;
      member = detail::read_member<std::remove_reference_t<decltype(member)>>(name, item.value());
    });
    if (!known) detail::fail("preset: ", name, " is not a member; there are ", names, " and measured");
  }
  if (!has_schedule) detail::fail("preset: the member schedule is missing");
  preset = std::move(result);
}

/// Writes what `from_json` reads. A number above the most tokens of a sequence is written as that.
template <class Json>
void to_json(Json& json, const Preset& preset) {
  json = Json::object();
  detail::visit_members(preset, [&json, &preset](const char* name, const auto& member) {
    using Member = std::remove_cvref_t<decltype(member)>;
    if constexpr (std::is_same_v<Member, Schedule> || std::is_same_v<Member, AttentionScore>) {
      json[name] = to_text(member);
    } else if constexpr (std::is_same_v<Member, Index>) {
      const bool absent = &member == &preset.max_revived && member == Selection::unlimited;
      if (!absent) json[name] = std::min(member, detail::most_tokens);
    } else if (member) {
      json[name] = std::min(*member, detail::most_tokens);
    }
  });
}

}  // namespace lazyllm
