#pragma once

#include <array>
#include <charconv>
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

/// Reads `LAYER:KEEP,LAYER:KEEP,…`, e.g. `9:0.7,19:0.7,28:0.7`, or `dense` for no pruning layers. Throws
/// `invalid_argument` on anything else.
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

/// What `parse_score` reads, in words.
inline constexpr std::string_view score_syntax =
    "last, or mean:N or max:N over the last N tokens; then any of +heads:max (the highest head instead of the mean), "
    "+layers (summed over the layers) and +pool:W (highest of W neighbours, W odd)";

/// Reads what `score_syntax` says, for example `mean:8+pool:5`. Throws `invalid_argument` on anything else.
inline AttentionScore parse_score(std::string_view text) {
  AttentionScore score;
  std::string_view rest = text.data() == nullptr ? "" : text;
  bool first = true;
  for (std::string_view part; detail::next_part(rest, '+', part); first = false) {
    const auto is_number = [part](std::string_view name, Index& number) {
      return part.starts_with(name) && detail::read_number(part.substr(name.size()), number);
    };
    if (first && part == "last") continue;
    if (first && is_number("mean:", score.last_queries)) continue;
    if (first && is_number("max:", score.last_queries)) {
      score.reduce = Reduce::max;
    } else if (!first && part == "heads:max") {
      score.heads = Reduce::max;
    } else if (!first && part == "layers") {
      score.over_layers = true;
    } else if (first || !is_number("pool:", score.pooling)) {
      detail::fail("score '", text, "': '", part, "' is not understood; a score is ", score_syntax);
    }
  }
  score.check();
  return score;
}

/// What `parse_score` reads.
inline std::string to_text(const AttentionScore& score) {
  std::string result = "last";
  if (score.last_queries > 1) {
    result = (score.reduce == Reduce::max ? "max:" : "mean:") + std::to_string(score.last_queries);
  }
  if (score.heads == Reduce::max) result += "+heads:max";
  if (score.over_layers) result += "+layers";
  if (score.pooling > 1) result += "+pool:" + std::to_string(score.pooling);
  return result;
}

/// A policy by name: what programs read, show in their help and test.
struct NamedPolicy {
  std::string_view prefix;      ///< before the schedule
  std::string_view meaning;     ///< of the schedule's numbers
  AnyPolicy (*make)(Schedule);  ///< the policy with a schedule
};

/// All policies that have a schedule.
inline constexpr std::array<NamedPolicy, 3> named_policies = {{
    {"", "keep ratio of the active tokens",
     [](Schedule schedule) { return AnyPolicy(KeepRatio(std::move(schedule))); }},
    {"top-p@", "share of the scores that the kept tokens hold",
     [](Schedule schedule) { return AnyPolicy(KeepTopP(std::move(schedule))); }},
    {"static@", "keep ratio, in the first step only; nothing is revived",
     [](Schedule schedule) { return AnyPolicy(StaticPruning(std::move(schedule))); }},
}};

/// Reads a schedule for a model of `layers` layers with the prefix of a named policy, or `paper` for `PaperPolicy`.
/// Throws `invalid_argument` on anything else, and for a layer that the model does not have.
inline AnyPolicy parse_policy(std::string_view text, Index layers) {
  if (text == "paper") return PaperPolicy();
  const std::size_t at = text.find('@');
  const std::string_view prefix = at == std::string_view::npos ? "" : text.substr(0, at + 1);
  std::string known;
  for (const NamedPolicy& policy : named_policies) {
    if (policy.prefix != prefix) {
      if (!policy.prefix.empty()) known.append(known.empty() ? "" : ", ").append(policy.prefix);
      continue;
    }
    Schedule schedule = parse_schedule(text.substr(prefix.size()));
    schedule.check(layers);
    if (!prefix.empty() && schedule.points().empty()) {
      detail::fail("schedule '", text, "': '", prefix, "' needs a list of LAYER:KEEP, not dense");
    }
    return policy.make(std::move(schedule));
  }
  detail::fail("schedule '", text, "': '", prefix, "' is not one of ", known);
}

}  // namespace lazyllm
