#include "bench/evaluate/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "bench/evaluate/metrics.hpp"
#include "examples/llama/base.hpp"
#include "examples/llama/program/timing.hpp"

namespace llama {

namespace {

using Json = nlohmann::ordered_json;

double mean(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

/// The mean of `value(entry)` over the entries.
template <class Entry, class Value>
double mean_of(std::span<const Entry> entries, const Value& value) {
  std::vector<double> values;
  for (const Entry& entry : entries) values.push_back(value(entry));
  return mean(values);
}

std::optional<Speed> speed_of(std::span<const ItemResult* const> items) {
  double dense_ttft = 0, ttft = 0, dense_total = 0, total = 0, timed = 0;
  for (const ItemResult* item : items) {
    const Timing& timing = item->timing;
    if (timing.ttft_ms.empty()) continue;
    dense_ttft += median(timing.dense_ttft_ms);
    ttft += median(timing.ttft_ms);
    dense_total += median(timing.dense_total_ms);
    total += median(timing.total_ms);
    timed += 1;
  }
  if (timed == 0) return std::nullopt;
  return Speed{dense_ttft / timed, ttft / timed, dense_ttft / ttft, dense_total / total};
}

Group dataset_group(const std::string& name, std::span<const ItemResult* const> items) {
  const auto item_mean = [&](const auto& value) {
    return mean_of(items, [&](const ItemResult* item) {
      return mean_of(std::span(item->runs), [&](const RunResult& run) { return value(run); });
    });
  };
  Group group;
  group.name = name;
  group.items = std::ssize(items);
  for (std::size_t run = 0; run < items.front()->runs.size(); ++run) {
    std::vector<double> scores;
    for (const ItemResult* item : items) scores.push_back(item->runs.at(run).score);
    group.score_by_run.push_back(dataset_score(scores));
  }
  group.score = mean(group.score_by_run);
  group.prompt_tokens = mean_of(items, [](const ItemResult* item) { return static_cast<double>(item->prompt_tokens); });
  group.generated_tokens = item_mean([](const RunResult& run) { return static_cast<double>(run.tokens); });
  group.computed_percent = item_mean([](const RunResult& run) { return run.computed_percent; });
  group.reserved_percent = item_mean([](const RunResult& run) { return run.reserved_percent; });
  group.filled_percent = item_mean([](const RunResult& run) { return run.filled_percent; });
  group.ideal_ttft_speedup = mean_of(items, [](const ItemResult* item) { return item->dense_operations; }) /
                             item_mean([](const RunResult& run) { return run.operations; });
  group.timed_items = std::ranges::count_if(items, [](const auto* item) { return !item->timing.ttft_ms.empty(); });
  group.speed = speed_of(items);
  return group;
}

/// The mean of `groups`; speed over those that have one.
Group mean_group(std::string name, std::span<const Group> groups) {
  const auto of = [&](double Group::*field) {
    return mean_of(groups, [&](const Group& group) { return group.*field; });
  };
  Group result;
  result.name = std::move(name);
  result.score = of(&Group::score);
  result.prompt_tokens = of(&Group::prompt_tokens);
  result.generated_tokens = of(&Group::generated_tokens);
  result.computed_percent = of(&Group::computed_percent);
  result.ideal_ttft_speedup = of(&Group::ideal_ttft_speedup);
  result.reserved_percent = of(&Group::reserved_percent);
  result.filled_percent = of(&Group::filled_percent);
  for (std::size_t run = 0; run < groups.front().score_by_run.size(); ++run) {
    result.score_by_run.push_back(mean_of(groups, [&](const Group& group) { return group.score_by_run[run]; }));
  }
  std::vector<Speed> speeds;
  for (const Group& group : groups) {
    result.items += group.items;
    result.timed_items += group.timed_items;
    if (group.speed) speeds.push_back(*group.speed);
  }
  if (!speeds.empty()) {
    const auto speed = [&](double Speed::*field) {
      return mean_of(std::span<const Speed>(speeds), [&](const Speed& one) { return one.*field; });
    };
    result.speed = Speed{speed(&Speed::dense_ttft_ms), speed(&Speed::ttft_ms), speed(&Speed::ttft_speedup),
                         speed(&Speed::generation_speedup)};
  }
  return result;
}

Json group_json(const Group& group) {
  Json json = {{"items", group.items},
               {"score", group.score},
               {"score_by_run", group.score_by_run},
               {"prompt_tokens", group.prompt_tokens},
               {"generated_tokens", group.generated_tokens},
               {"computed_percent", group.computed_percent},
               {"ideal_ttft_speedup", group.ideal_ttft_speedup},
               {"reserved_kv_aux_percent", group.reserved_percent},
               {"filled_kv_aux_percent", group.filled_percent},
               {"timed_items", group.timed_items}};
  if (group.speed) {
    json["dense_ttft_ms"] = group.speed->dense_ttft_ms;
    json["ttft_ms"] = group.speed->ttft_ms;
    json["ttft_speedup"] = group.speed->ttft_speedup;
    json["generation_speedup"] = group.speed->generation_speedup;
  }
  return json;
}

std::string row(std::string_view indent, const Group& group) {
  const auto timed = [&](double Speed::*field, const char* unit, int digits) {
    return group.speed ? fmt::format("{:.{}f}{}", (*group.speed).*field, digits, unit) : std::string("-");
  };
  return fmt::format("{:<28}{:>6}{:>8.2f}{:>9.0f}{:>11}{:>10}{:>9}{:>8.2f}x{:>10.1f}{:>11}{:>9.1f}{:>9.1f}\n",
                     fmt::format("{}{}", indent, group.name), group.items, group.score, group.prompt_tokens,
                     timed(&Speed::dense_ttft_ms, "", 1), timed(&Speed::ttft_ms, "", 1),
                     timed(&Speed::ttft_speedup, "x", 2), group.ideal_ttft_speedup, group.computed_percent,
                     timed(&Speed::generation_speedup, "x", 2), group.reserved_percent, group.filled_percent);
}

}  // namespace

Summary summarize(std::span<const ItemResult> results) {
  if (results.empty()) fail("no item could be evaluated");
  std::map<std::string, std::vector<const ItemResult*>> datasets;
  for (const ItemResult& result : results) datasets[result.dataset].push_back(&result);
  std::vector<DatasetScore> scores;
  std::map<std::string_view, std::vector<Group>> categories;
  for (const auto& [name, items] : datasets) {
    const Group& group = categories[category(name)].emplace_back(dataset_group(name, items));
    scores.push_back({name, group.score});
  }
  Summary summary;
  std::vector<Group> means;
  for (const CategoryScore& score : category_scores(scores)) {
    std::vector<Group>& groups = categories.at(score.category);
    means.push_back(mean_group(std::string(score.category), groups));
    summary.categories.push_back({means.back(), std::move(groups)});
  }
  summary.overall = mean_group("overall", means);
  return summary;
}

std::string table(const Summary& summary) {
  std::string text = fmt::format(
      "{:<28}{:>6}{:>8}{:>9}{:>11}{:>10}{:>9}{:>9}{:>10}{:>11}{:>9}{:>9}\n"
      "{:<28}{:>6}{:>8}{:>9}{:>11}{:>10}{:>9}{:>9}{:>10}{:>11}{:>9}{:>9}\n",
      "", "", "score", "prompt", "dense TTFT", "TTFT", "TTFT", "ideal", "prompt", "generation", "KV+Aux", "filled", "",
      "items", "0-100", "tokens", "ms", "ms", "speedup", "speedup", "computed%", "speedup", "% dense", "% dense");
  for (const CategorySummary& category : summary.categories) {
    text += row("", category.mean);
    for (const Group& dataset : category.datasets) text += row("  ", dataset);
  }
  return text + row("", summary.overall);
}

Json to_json(const Summary& summary) {
  Json json = {{"overall", group_json(summary.overall)}, {"categories", Json::object()}, {"datasets", Json::object()}};
  for (const CategorySummary& category : summary.categories) {
    json["categories"][category.mean.name] = group_json(category.mean);
    for (const Group& dataset : category.datasets) {
      json["datasets"][dataset.name] = group_json(dataset);
      json["datasets"][dataset.name]["category"] = category.mean.name;
    }
  }
  return json;
}

}  // namespace llama
