#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "lazyllm/backend/cpu/context.hpp"
#include "lazyllm/policy/score_order.hpp"
#include "lazyllm/policy/selection.hpp"

namespace lazyllm::cpu {

namespace detail {

/// The `count`-th highest of `ranks`, and how many of those equal to it belong to the highest `count`.
struct Threshold {
  std::uint32_t key = 0;
  Index at_threshold = 0;
};

/// A radix search from the highest digit down: a linear pass for each, whatever the ranks.
inline Threshold find_threshold(std::span<const float> ranks, Index count) {
  constexpr unsigned digit_bits = 11;
  Threshold threshold{.at_threshold = count};
  std::uint32_t fixed = 0;  // the digits of the key that are known
  for (const unsigned shift : {21U, 10U, 0U}) {
    std::array<std::uint32_t, 1 << digit_bits> histogram{};
    const std::uint32_t digit_mask = shift == 0 ? 1023 : 2047;
    for (const float rank : ranks) {
      const std::uint32_t key = lazyllm::detail::sort_key(rank);
      histogram[key >> shift & digit_mask] += (key & fixed) == threshold.key;
    }
    std::uint32_t digit = digit_mask;
    for (; histogram[digit] < threshold.at_threshold; --digit) threshold.at_threshold -= histogram[digit];
    threshold.key |= digit << shift;
    fixed |= digit_mask << shift;
  }
  return threshold;
}

/// Adds to `kept` the `count` highest of `ranks`, equal ones to the smaller index, ascending.
inline void keep_highest(std::span<const float> ranks, Index count, std::vector<Index>& kept) {
  const Threshold threshold = find_threshold(ranks, count);
  const std::size_t old_size = kept.size();
  kept.resize(old_size + static_cast<std::size_t>(count));
  Index* const target = kept.data() + old_size;
  Index size = 0;
  Index equals = 0;
  // Without a branch on the rank: which ones are kept cannot be foreseen.
  for (Index i = 0; size < count; ++i) {
    const std::uint32_t key = lazyllm::detail::sort_key(ranks[static_cast<std::size_t>(i)]);
    const Index higher = key > threshold.key;
    const Index equal = key == threshold.key;
    target[size] = i;
    size += higher | (equal & Index{equals < threshold.at_threshold});
    equals += equal;
  }
}

/// Gives every key the highest score among the `width` (odd) keys around it in the order of the active set.
inline void pool_scores(Context& context, Index width, std::span<float> scores) {
  if (scores.empty()) return;
  width = std::min(width, 2 * std::ssize(scores) - 1);
  // Entry i becomes the highest of the `span` scores from i on, the span doubling. In std::max a NaN stays where it
  // is and does not spread.
  const std::span<float> highest = context.scratch(std::ssize(scores) + width - 1);
  std::fill(highest.begin(), highest.end(), std::numeric_limits<float>::lowest());
  std::copy(scores.begin(), scores.end(), highest.begin() + width / 2);
  Index span = 1;
  for (; 2 * span <= width; span *= 2) {
    const float* const ahead = highest.data() + span;
    for (std::size_t i = 0; i < highest.size() - static_cast<std::size_t>(span); ++i) {
      highest[i] = std::max(highest[i], ahead[i]);
    }
  }
  const float* const ahead = highest.data() + width - span;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    scores[i] = std::max(highest[i], ahead[i]) + 0 * scores[i];  // a NaN stays one
  }
}

/// Adds what a task keeps to `kept`, or returns the index of its first score that is not finite, else -1.
inline Index select_one(Context& context, const SelectionTask& task, std::vector<Index>& kept) {
  constexpr float protected_rank = std::numeric_limits<float>::infinity();
  const std::span<float> scores = task.scores;
  const Selection& selection = task.selection;
  const bool by_mass = selection.kind == Selection::Kind::mass;
  if (selection.random_seed) {
    for (std::size_t i = 0; i < scores.size(); ++i)
      scores[i] = lazyllm::detail::random_score(*selection.random_seed, task.active[i]);
  } else if (task.pooling > 1) {
    pool_scores(context, task.pooling, scores);
  }
  float highest = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (!std::isfinite(scores[i])) return static_cast<Index>(i);
    highest = std::max(highest, std::abs(scores[i]));
  }
  const lazyllm::detail::ScoreUnits units(highest, std::ssize(scores));
  std::int64_t wanted = 0;
  if (by_mass) {
    for (const float score : scores) wanted += units.of(score);
    wanted = units.share(selection.mass, wanted);
  }
  Index count = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (selection.protects(task.active[i], task.tokens)) {
      wanted -= units.of(scores[i]);
      ++count;
      scores[i] = protected_rank;
    }
  }
  if (by_mass) {
    const std::span<float> scratch = context.scratch(std::ssize(scores));
    const auto open_end =
        std::ranges::copy_if(scores, scratch.begin(), [](float rank) { return rank != protected_rank; }).out;
    // Few tokens hold most of the attention, so the ranks are put in order only as far as they are needed.
    auto ordered_end = scratch.begin();
    for (auto rank = scratch.begin(); rank != open_end && wanted > 0; ++rank, ++count) {
      if (rank == ordered_end) {
        const Index part = std::max(std::ssize(scores) / 16, rank - scratch.begin());
        ordered_end += std::min(part + 1, open_end - rank);
        std::nth_element(rank, ordered_end - 1, open_end, std::greater<>());
        std::sort(rank, ordered_end, std::greater<>());
      }
      wanted -= units.of(*rank);
    }
  } else {
    count = std::max(selection.count, count);
  }
  keep_highest(scores, count, kept);
  return -1;
}

}  // namespace detail

/// Chooses by score which of the active tokens of each task stay active, and writes them to `kept`.
/// \return the first score that is not finite, if there is one, and then `kept` is not to be used
inline std::optional<BadScore> select(Context& context, std::span<const SelectionTask> tasks, KeptTokens& kept) {
  kept.indices.clear();
  kept.indptr.assign(1, 0);
  for (std::size_t task = 0; task < tasks.size(); ++task) {
    const Index bad = detail::select_one(context, tasks[task], kept.indices);
    if (bad >= 0) return BadScore{task, bad};
    kept.indptr.push_back(std::ssize(kept.indices));
  }
  return std::nullopt;
}

}  // namespace lazyllm::cpu
