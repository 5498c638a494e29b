#pragma once

#include <algorithm>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "lazyllm/check/check_run.hpp"
#include "lazyllm/check/expect.hpp"
#include "lazyllm/core.hpp"

namespace lazyllm::detail {

/// Of a block that can be scored in both ways, the one with `queries` and `key_view`.
template <class Block>
struct QueriesAlone {
  Block& block;
  auto queries(const LayerPlan& plan) const { return block.queries(plan); }
  auto key_view(const LayerPlan& plan, Index sequence) const { return block.key_view(plan, sequence); }
};

/// What the engine hands over, reduced over the heads, then over the rows of the window.
template <class Engine, class Context>
std::vector<float> scores_of_probabilities(Engine& engine, Context& context, const LayerPlan& plan,
                                           const ScoreWindow& window) {
  std::vector<float> scores(plan.sequence(window.sequence).keys.size(), 0);
  for (Index row = window.first_row; row < window.first_row + window.rows; ++row) {
    const std::vector<float> each = to_vector(engine.probabilities(context, plan, window.sequence, row));
    const auto limit = to_size(plan.key_limits()[to_size(row)]);
    const std::size_t heads = each.size() / limit;
    if (heads == 0 || each.size() != heads * limit) {
      disagree("probabilities: ", each.size(), " numbers, not a multiple of the ", limit, " keys of the row");
    }
    for (std::size_t key = 0; key < limit; ++key) {
      float of_row = 0;
      for (std::size_t head = 0; head < heads; ++head) {
        const float of_head = each[head * limit + key];
        of_row =
            window.over_heads == Reduce::max ? std::max(of_row, of_head) : of_row + of_head / static_cast<float>(heads);
      }
      scores[key] = window.over_rows == Reduce::max ? std::max(scores[key], of_row)
                                                    : scores[key] + of_row / static_cast<float>(window.rows);
    }
  }
  return scores;
}

/// The scores of `window` in each way in which the engine and its block can have them, by name.
template <class Run>
auto ways_to_score(Run& run, const LayerPlan& plan, const ScoreWindow& window) {
  auto& block = run.attention(plan.layer());
  using Block = std::remove_cvref_t<decltype(block)>;
  std::vector<std::pair<const char*, std::vector<float>>> ways;
  if constexpr (requires { run.engine().probabilities(run.context(), plan, Index{}, Index{}); }) {
    ways.emplace_back("probabilities", scores_of_probabilities(run.engine(), run.context(), plan, window));
  }
  if constexpr (ExposesQueriesAndKeys<Block>) {
    QueriesAlone<Block> queries{block};
    ways.emplace_back("queries and key_view", run.scores(queries, plan, window));
  }
  if constexpr (ScoresTokens<Block, typename Run::context_type>) {
    ways.emplace_back("token_scores", run.scores(block, plan, window));
  }
  return ways;
}

}  // namespace lazyllm::detail
