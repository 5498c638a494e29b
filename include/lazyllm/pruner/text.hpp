#pragma once

#include <array>
#include <charconv>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/policy/policies.hpp"
#include "lazyllm/policy/schedule.hpp"
#include "lazyllm/policy/selection.hpp"
#include "lazyllm/score/attention_score.hpp"

/// \file
/// Policies and scores as text, for command lines and files.

namespace lazyllm {

namespace detail {

/// Reads a whole text as a number.
template <class Number>
bool read_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

/// Splits off the part before the first `separator`; false once nothing is left.
inline bool next_part(std::string_view& rest, char separator, std::string_view& part) {
  if (rest.data() == nullptr) return false;
  const std::size_t end = rest.find(separator);
  part = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  return true;
}

}  // namespace detail

/// Reads `LAYER:KEEP,LAYER:KEEP,…`, e.g. `9:0.7,19:0.7,28:0.7`, or `dense` for no pruning layers. LAYER is how many
/// layers run before the cut, see `LayerKeep`. Throws `invalid_argument` on anything else.
inline Schedule parse_schedule(std::string_view text) {
  if (text == "dense") return {};
  std::vector<LayerKeep> points;
  std::string_view rest = text.data() == nullptr ? "" : text;
  for (std::string_view item; detail::next_part(rest, ',', item);) {
    const std::size_t colon = item.find(':');
    LayerKeep point;
    if (colon == std::string_view::npos || !detail::read_number(item.substr(0, colon), point.layers_run) ||
        !detail::read_number(item.substr(colon + 1), point.keep)) {
      detail::fail("schedule '", text, "': '", item, "' is not LAYER:KEEP, e.g. 9:0.7");
    }
    points.push_back(point);
  }
  return Schedule(std::move(points));
}

/// What `parse_schedule` reads, digit for digit.
inline std::string to_text(const Schedule& schedule) {
  if (schedule.points().empty()) return "dense";
  std::string result;
  for (const auto& [layer, keep] : schedule.points()) {
    std::array<char, 32> digits;
    char* end = std::to_chars(digits.data(), digits.data() + digits.size(), keep).ptr;
    if (!result.empty()) result += ',';
    result.append(std::to_string(layer) + ':').append(digits.data(), end);
  }
  return result;
}

/// A part of a score's text: what programs read, write, show in their help and test.
struct ScorePart {
  std::string_view name;                   ///< where it ends with ':', a whole number N follows
  std::string_view meaning;                ///< in words
  void (*set)(AttentionScore&, Index);     ///< to the number, or to 1 for a part without one
  Index (*number)(const AttentionScore&);  ///< that `set` takes; 0 where the score does not have the part
};

/// How the text of a score begins.
inline constexpr std::array<ScorePart, 3> score_windows = {{
    {"last", "by the last token", [](AttentionScore& score, Index) { score.last_queries = 1; },
     [](const AttentionScore& score) { return Index{score.last_queries == 1}; }},
    {"mean:", "mean over the last N tokens", [](AttentionScore& score, Index count) { score.last_queries = count; },
     [](const AttentionScore& score) { return score.over_rows == Reduce::mean ? score.last_queries : 0; }},
    {"max:", "highest of the last N tokens",
     [](AttentionScore& score, Index count) {
       score.last_queries = count;
       score.over_rows = Reduce::max;
     },
     [](const AttentionScore& score) { return score.over_rows == Reduce::max ? score.last_queries : 0; }},
}};

/// What may follow, each after a '+'.
inline constexpr std::array<ScorePart, 3> score_options = {{
    {"heads:max", "the highest head instead of the mean",
     [](AttentionScore& score, Index) { score.over_heads = Reduce::max; },
     [](const AttentionScore& score) { return Index{score.over_heads == Reduce::max}; }},
    {"layers", "summed over the layers", [](AttentionScore& score, Index) { score.over_layers = true; },
     [](const AttentionScore& score) { return Index{score.over_layers}; }},
    {"pool:", "highest of N neighbours, N odd", [](AttentionScore& score, Index count) { score.pooling = count; },
     [](const AttentionScore& score) { return score.pooling > 1 ? score.pooling : 0; }},
}};

namespace detail {

/// Reads a part of a score's text as one of `parts`, if it is one.
inline bool read_score_part(std::span<const ScorePart> parts, std::string_view text, AttentionScore& score) {
  for (const ScorePart& part : parts) {
    Index number = 1;
    const bool numbered = part.name.ends_with(':');
    if (numbered ? text.starts_with(part.name) && read_number(text.substr(part.name.size()), number)
                 : text == part.name) {
      part.set(score, number);
      return true;
    }
  }
  return false;
}

}  // namespace detail

/// What `parse_score` reads, in words.
inline std::string score_syntax() {
  std::string text;
  const auto append = [&text](const char* before, const ScorePart& part) {
    text.append(before).append(part.name).append(part.name.ends_with(':') ? "N" : "");
    text.append(" (").append(part.meaning).append(")");
  };
  for (const ScorePart& part : score_windows) append(text.empty() ? "" : " or ", part);
  for (const ScorePart& part : score_options) append(&part == score_options.data() ? "; then any of +" : ", +", part);
  return text;
}

/// Reads what `score_syntax` says, for example `mean:8+pool:5`. Throws `invalid_argument` on anything else.
inline AttentionScore parse_score(std::string_view text) {
  AttentionScore score;
  std::string_view rest = text.data() == nullptr ? "" : text;
  std::span<const ScorePart> parts = score_windows;
  for (std::string_view part; detail::next_part(rest, '+', part); parts = score_options) {
    if (!detail::read_score_part(parts, part, score)) {
      detail::fail("score '", text, "': '", part, "' is not understood; a score is ", score_syntax());
    }
  }
  score.check();
  return score;
}

/// What `parse_score` reads.
inline std::string to_text(const AttentionScore& score) {
  std::string text;
  const auto append = [&](const ScorePart& part) {
    const Index number = part.number(score);
    if (number == 0) return;
    text.append(text.empty() ? "" : "+").append(part.name);
    if (part.name.ends_with(':')) text.append(std::to_string(number));
  };
  for (const ScorePart& part : score_windows) {
    if (text.empty()) append(part);
  }
  for (const ScorePart& part : score_options) append(part);
  return text;
}

/// A policy by name: what programs read, show in their help and test.
struct NamedPolicy {
  std::string_view name;               ///< the whole text; where it is empty or ends with '@', a schedule follows
  std::string_view meaning;            ///< of the schedule's numbers, or of the name
  AnyPolicy (*make)(const Schedule&);  ///< the policy with a schedule

  /// Whether a schedule follows the name.
  constexpr bool has_schedule() const { return name.empty() || name.ends_with('@'); }
};

/// All policies that programs know.
inline constexpr std::array<NamedPolicy, 4> named_policies = {{
    {"", "keep ratio of the active tokens", [](const Schedule& schedule) { return AnyPolicy(KeepRatio(schedule)); }},
    {"top-p@", "share of the scores that the kept tokens hold",
     [](const Schedule& schedule) { return AnyPolicy(KeepTopP(schedule)); }},
    {"static@", "keep ratio, in the first step only; nothing is revived",
     [](const Schedule& schedule) { return AnyPolicy(StaticPruning(schedule)); }},
    {"paper", "keep ratio 0.7 after each 30 % of the layers", [](const Schedule&) { return AnyPolicy(PaperPolicy()); }},
}};

/// Reads the name of a policy, followed by a schedule for a model of `layers` layers where the policy has one. Throws
/// `invalid_argument` on anything else, and for a layer that the model does not have.
inline AnyPolicy parse_policy(std::string_view text, Index layers) {
  const std::size_t at = text.find('@');
  const std::string_view prefix = at == std::string_view::npos ? "" : text.substr(0, at + 1);
  std::string known;
  for (const NamedPolicy& policy : named_policies) {
    if (!policy.has_schedule() && policy.name == text) return policy.make({});
    if (!policy.name.empty()) known.append(known.empty() ? "" : ", ").append(policy.name);
  }
  for (const NamedPolicy& policy : named_policies) {
    if (!policy.has_schedule() || policy.name != prefix) continue;
    const Schedule schedule = parse_schedule(text.substr(prefix.size()));
    schedule.check(layers);
    if (!prefix.empty() && schedule.points().empty()) {
      detail::fail("schedule '", text, "': '", prefix, "' needs a list of LAYER:KEEP, not dense");
    }
    return policy.make(schedule);
  }
  detail::fail("schedule '", text, "': '", prefix, "' is not one of ", known);
}

}  // namespace lazyllm
