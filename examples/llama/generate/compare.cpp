#include "examples/llama/generate/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "examples/llama/program/counted.hpp"
#include "examples/llama/program/timing.hpp"

namespace llama {
namespace {

/// The runs whose times count: the printed one, the first, if it is the only one.
std::span<const Run> timed(const std::vector<Run>& runs) { return std::span(runs).subspan(runs.size() > 1 ? 1 : 0); }

/// Replaces the times of the first run by the medians over the timed ones; everything else is the same in all.
void take_median_times(std::vector<Run>& runs) {
  Run& first = runs.front();
  for (std::size_t step = 0; step < first.step_ms.size(); ++step) {
    std::vector<double> times;
    for (const Run& run : timed(runs)) times.push_back(run.step_ms[step]);
    first.step_ms[step] = median(times);
  }
}

/// The first number of tokens up to `common` that the lazy run takes longer for than the dense one.
std::optional<std::size_t> behind_from(const Run& dense, const Run& lazy, std::size_t common) {
  for (std::size_t count = 1; count <= common; ++count) {
    if (lazy.ms(count) > dense.ms(count)) return count;
  }
  return std::nullopt;
}

}  // namespace

Comparison compare(std::vector<Run> dense, std::vector<Run> lazy, nlohmann::ordered_json& report) {
  const auto ratio = [&](const auto& value) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < timed(dense).size(); ++i)
      ratios.push_back(value(timed(dense)[i]) / value(timed(lazy)[i]));
    return median(ratios);
  };
  const auto [differ, _] = std::ranges::mismatch(dense[0].tokens, lazy[0].tokens);
  const std::size_t equal = static_cast<std::size_t>(differ - dense[0].tokens.begin());
  const std::size_t common = std::min(dense[0].tokens.size(), lazy[0].tokens.size());
  const double ttft_speedup = ratio([](const Run& run) { return run.step_ms[0]; });
  const double generation_speedup = ratio([&](const Run& run) { return run.ms(common); });
  const double ideal = dense[0].prefill_operations / lazy[0].prefill_operations;
  take_median_times(dense);
  take_median_times(lazy);
  report["repeats"] = timed(dense).size();
  report["dense"] = to_json(dense[0]);
  report["lazy"] = to_json(lazy[0]);
  report["ttft_speedup"] = ttft_speedup;
  report["ideal_ttft_speedup"] = ideal;
  report["generation_speedup"] = generation_speedup;
  report["first_token_equal"] = equal > 0;
  report["equal_tokens"] = equal;
  const auto behind = behind_from(dense[0], lazy[0], common);
  report["behind_dense_from"] = behind ? nlohmann::ordered_json(*behind) : nlohmann::ordered_json();

  std::string figures = fmt::format(
      "{}\n{}\n{}\n{}\nprompt computed: {:.1f} % of its token-layers\nequal tokens: the first {} of {}\n"
      "generation speedup: {:.2f}x over {}; {}\n"
      "TTFT speedup: {:.2f}x (ideal by operation count {:.2f}x, median of {})\n",
      figures_of("dense: ", dense[0]), decode_line("       ", dense[0]), figures_of("lazy:  ", lazy[0]),
      decode_line("       ", lazy[0]), lazy[0].prompt_computed_percent, equal, common, generation_speedup,
      counted(common, "token"),
      behind ? fmt::format("behind dense from {} on", counted(static_cast<Index>(*behind), "token"))
             : "never behind dense",
      ttft_speedup, ideal, timed(dense).size());
  return {std::move(lazy[0]), std::move(figures)};
}

}  // namespace llama
