#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "lazyllm/backend/operations.hpp"
#include "lazyllm/backend/score_order.hpp"
#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/layer_plan.hpp"
#include "lazyllm/engine/rows.hpp"
#include "lazyllm/parallel/ranks.hpp"
#include "lazyllm/score/attention_score.hpp"
#include "lazyllm/score/token_score.hpp"

namespace lazyllm {

/// An `AttentionScore` of heads that are split over ranks: each rank scores with its own ones, then all have the same
/// scores, bit for bit, and so keep the same tokens. All sequences of a layer take one collective, two where scores of
/// both kinds of `over_heads` meet; what throws on one rank while it scores is thrown as `rank_error` on all. A score
/// that is not a finite number on one rank is NaN on all: its entry ends alone, everywhere.
///
/// Where heads and rows are not reduced alike, each row of the window takes part on its own: `last_queries` times the
/// numbers, and a block's `token_scores` gets a window for each row. Memory for the numbers is taken in each call.
///
/// With the policy and the score of `make_pruner(preset)`, as `pruner`:
/// `TokenPruner<AnyPolicy, ScoreOfRanks>(pruner.policy(), ScoreOfRanks{pruner.score(), &ranks})`.
struct ScoreOfRanks : AttentionScore {
  /// The same for all sequences of a step, else `invalid_argument` is thrown; for one step at a time; must outlive it.
  /// Null: this process has all heads.
  Ranks* ranks = nullptr;

  /// Scores are shares of attention. Those of a block's own `token_scores` must not be larger either.
  static constexpr float highest = 4096;

  /// Fills the scores of one layer; see `score_by_attention`.
  template <Backend Context, class Block>
  static void score(Context& context, Block& block, const LayerPlan& plan, std::span<const ScoreWindow> windows,
                    std::span<const ScoreOfRanks* const> options) {
    Ranks* const ranks = options.front()->ranks;
    for (const ScoreOfRanks* const option : options) {
      if (option->ranks != ranks) detail::fail("ScoreOfRanks: the sequences of one step have different ranks");
    }
    if (ranks == nullptr) return score_by_attention(context, block, plan, windows);
    for (const Reduce heads : {Reduce::mean, Reduce::max}) reduce_scores(context, block, plan, windows, *ranks, heads);
  }

 private:
  /// Whole numbers of this unit are added. It is fine enough for a share of 2^-27 with all its digits, and so large
  /// that the sums of numbers up to `highest` stay below 2^62.
  static constexpr double unit = 0x1p-50;

  /// The rows that take part on their own.
  static Index rows_of(const ScoreWindow& window) { return window.over_heads == window.over_rows ? 1 : window.rows; }

  static std::size_t numbers_of(const ScoreWindow& window) {
    return detail::to_size(rows_of(window)) * window.scores.size() + 1;
  }

  template <Backend Context, class Block>
  static void reduce_scores(Context& context, Block& block, const LayerPlan& plan, std::span<const ScoreWindow> windows,
                            Ranks& ranks, Reduce heads) {
    std::size_t count = 0;
    std::span<float> longest;
    for (const ScoreWindow& window : windows) {
      if (window.over_heads != heads) continue;
      count += numbers_of(window);
      if (window.scores.size() > longest.size()) longest = window.scores;
    }
    if (count == 0) return;
    const ReduceOp op = heads == Reduce::mean ? ReduceOp::sum : ReduceOp::max;
    auto numbers = ranks.all_reduce(count, op, [&](std::span<std::int64_t> own) {
      // Makes room for what is copied behind the collective: a rank must not fail there alone.
      copy_from_host(context, ranks.scratch(longest.size()).data(), row_of(longest));
      if (ranks.share() > 0) write(context, block, plan, windows, ranks, heads, own);
    });
    for (const ScoreWindow& window : windows) {
      if (window.over_heads != heads) continue;
      const std::span<float> scores = ranks.scratch(window.scores.size());
      read(window, numbers.first(numbers_of(window)), scores);
      copy_from_host(context, scores.data(), row_of(window.scores));
      numbers = numbers.subspan(numbers_of(window));
    }
  }

  static RowsView<float> row_of(std::span<float> scores) { return {scores.data(), 1, std::ssize(scores)}; }

  /// The scores of this rank as whole numbers, window by window and row by row; the last one of a window says whether a
  /// score is bad. All are made by one call of the backend and copied at once.
  template <Backend Context, class Block>
  static void write(Context& context, Block& block, const LayerPlan& plan, std::span<const ScoreWindow> windows,
                    Ranks& ranks, Reduce heads, std::span<std::int64_t> numbers) {
    typename Context::template Buffer<float> buffer;
    buffer.reserve(context, 1, std::ssize(numbers));
    const RowsView<float> scores = buffer.rows();
    std::vector<ScoreWindow> parts;
    float* end = scores.data;
    for (const ScoreWindow& window : windows) {
      if (window.over_heads != heads) continue;
      for (Index row = 0; row < rows_of(window); ++row) {
        ScoreWindow& part = parts.emplace_back(window);
        if (rows_of(window) > 1) {
          part.first_row += row;
          part.rows = 1;
        }
        part.scores = {end, window.scores.size()};
        end += window.scores.size();
      }
    }
    score_by_attention(context, block, plan, std::span<const ScoreWindow>(parts));
    const std::span<float> copies = ranks.scratch(static_cast<std::size_t>(end - scores.data));
    copy_to_host(context, RowsView<const float>(row_of({scores.data, copies.size()})), copies.data());
    const float* score = copies.data();
    for (const ScoreWindow& window : windows) {
      if (window.over_heads != heads) continue;
      const std::span<std::int64_t> own = numbers.first(numbers_of(window));
      for (std::int64_t& number : own.first(own.size() - 1))
        number = number_of(*score++, ranks.share(), heads, own.back());
      numbers = numbers.subspan(own.size());
    }
  }

  /// A score as a number to be joined; sets `bad` for one that is not finite.
  static std::int64_t number_of(float score, double share, Reduce heads, std::int64_t& bad) {
    if (!detail::is_finite(score)) {
      bad = 1;
      return 0;
    }
    if (std::abs(score) > highest) {
      detail::fail("ScoreOfRanks: score ", score, " is out of range ", -highest, " to ", highest);
    }
    return heads == Reduce::max ? detail::sort_key(score) : std::llround(share * double{score} / unit);
  }

  /// The scores of all ranks from the joined numbers.
  static void read(const ScoreWindow& window, std::span<const std::int64_t> numbers, std::span<float> scores) {
    const Index rows = rows_of(window);
    std::ranges::fill(scores, std::bit_cast<float>(0x7fc00000U));
    if (numbers.back() != 0) return;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const auto number = [&](Index row) { return numbers[detail::to_size(row) * scores.size() + i]; };
      const auto score = [&](Index row) {
        return window.over_heads == Reduce::max ? double{detail::score_of(static_cast<std::uint32_t>(number(row)))}
                                                : static_cast<double>(number(row)) * unit;
      };
      double joined = score(0);
      for (Index row = 1; row < rows; ++row) {
        joined = window.over_rows == Reduce::max ? std::max(joined, score(row)) : joined + score(row);
      }
      const bool mean = window.over_rows == Reduce::mean;
      scores[i] = static_cast<float>(mean ? joined / static_cast<double>(rows) : joined);
    }
  }
};

static_assert(TokenScore<ScoreOfRanks>);

}  // namespace lazyllm
