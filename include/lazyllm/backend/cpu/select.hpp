#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "lazyllm/backend/cpu/context.hpp"
#include "lazyllm/backend/operations.hpp"
#include "lazyllm/backend/score_order.hpp"

namespace lazyllm::cpu {

namespace detail {

/// The `count`-th highest of `scores`, and how many of those equal to it belong to the highest `count`.
struct Threshold {
  std::uint32_t key = 0;
  Index at_threshold = 0;
};

/// A radix search from the highest digit down: a linear pass for each, whatever the scores.
inline Threshold find_threshold(std::span<const float> scores, Index count) {
  constexpr unsigned digit_bits = 11;
  Threshold threshold{.at_threshold = count};
  std::uint32_t fixed = 0;  // the digits of the key that are known
  for (const unsigned shift : {21U, 10U, 0U}) {
    std::array<std::uint32_t, 1 << digit_bits> histogram{};
    const std::uint32_t digit_mask = shift == 0 ? 1023 : 2047;
    for (const float score : scores) {
      const std::uint32_t key = lazyllm::detail::sort_key(score);
      histogram[key >> shift & digit_mask] += (key & fixed) == threshold.key;
    }
    std::uint32_t digit = digit_mask;
    for (; histogram[digit] < threshold.at_threshold; --digit) threshold.at_threshold -= histogram[digit];
    threshold.key |= digit << shift;
    fixed |= digit_mask << shift;
  }
  return threshold;
}

/// Adds to `kept` the `count` highest of `scores`, equal ones to the smaller index, ascending.
inline void keep_highest(std::span<const float> scores, Index count, std::vector<Index>& kept) {
  const Threshold threshold = find_threshold(scores, count);
  const std::size_t old_size = kept.size();
  kept.resize(old_size + static_cast<std::size_t>(count));
  Index* const target = kept.data() + old_size;
  Index size = 0;
  Index equals = 0;
  // Without a branch on the score: which ones are kept cannot be foreseen.
  for (Index i = 0; size < count; ++i) {
    const std::uint32_t key = lazyllm::detail::sort_key(scores[lazyllm::detail::to_size(i)]);
    const Index higher = key > threshold.key;
    const Index equal = key == threshold.key;
    target[size] = i;
    size += higher | (equal & Index{equals < threshold.at_threshold});
    equals += equal;
  }
}

/// Takes out of what a task keeps, `kept` from `first` on, those keys that would be revived beyond its limit. Protected
/// keys have the score infinity in `ranked`, `[keys]`. Uses `scratch`, `[keys]`.
inline void limit_revived(const SelectionTask& task, std::span<const float> ranked, std::span<float> scratch,
                          std::size_t first, std::vector<Index>& kept) {
  std::size_t revived = 0;
  Index sure = 0;
  for (std::size_t i = first; i < kept.size(); ++i) {
    const auto key = lazyllm::detail::to_size(kept[i]);
    if (task.revives[key] == 0) continue;
    sure += task.protects(task.keys[key]);
    scratch[revived++] = ranked[key];
  }
  const Index count = std::max(task.max_revived, sure);
  if (static_cast<Index>(revived) <= count) return;
  const Threshold threshold = find_threshold(scratch.first(revived), count);
  Index equals = 0;
  const auto is_beyond = [&](Index index) {
    const auto key = lazyllm::detail::to_size(index);
    if (task.revives[key] == 0) return false;
    const std::uint32_t score = lazyllm::detail::sort_key(ranked[key]);
    return score < threshold.key || (score == threshold.key && equals++ >= threshold.at_threshold);
  };
  std::size_t size = first;
  for (std::size_t i = first; i < kept.size(); ++i) {
    const Index index = kept[i];
    if (!is_beyond(index)) kept[size++] = index;
  }
  kept.resize(size);
}

/// Adds what a task keeps to `kept`, or returns the index of its first score that is not finite, else -1.
inline Index select_one(Context& context, const SelectionTask& task, std::vector<Index>& kept) {
  constexpr float protected_score = std::numeric_limits<float>::infinity();
  const std::span<const float> scores = task.scores;
  float highest = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (!lazyllm::detail::is_finite(scores[i])) return static_cast<Index>(i);
    highest = std::max(highest, std::abs(scores[i]));
  }
  const lazyllm::detail::ScoreUnits units(highest, std::ssize(scores));
  std::int64_t wanted = 0;
  if (task.by_share) {
    for (const float score : scores) wanted += units.of(score);
    wanted = units.share(task.p, wanted);
  }
  Index count = 0;
  const std::span<float> scratch = context.scratch(2 * std::ssize(scores));
  const std::span<float> ranked = scratch.first(scores.size());
  const std::span<float> open = scratch.last(scores.size());  // the scores that compete, in its first `open_count`
  Index open_count = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (task.protects(task.keys[i])) {
      wanted -= units.of(scores[i]);
      ++count;
      ranked[i] = protected_score;
    } else {
      ranked[i] = open[lazyllm::detail::to_size(open_count++)] = scores[i];
    }
  }
  if (task.by_share) {
    // Few tokens hold most of the attention, so the scores are put in order only as far as they are needed.
    const auto open_end = open.begin() + open_count;
    auto ordered_end = open.begin();
    for (auto score = open.begin(); score != open_end && wanted > 0; ++score, ++count) {
      if (score == ordered_end) {
        const Index part = std::max(std::ssize(scores) / 16, score - open.begin());
        ordered_end += std::min(part + 1, open_end - score);
        std::nth_element(score, ordered_end - 1, open_end, std::greater<>());
        std::sort(score, ordered_end, std::greater<>());
      }
      wanted -= units.of(*score);
    }
  } else {
    count = std::clamp(task.k, count, std::ssize(scores));
  }
  const std::size_t first = kept.size();
  keep_highest(ranked, count, kept);
  if (!task.revives.empty()) limit_revived(task, ranked, open, first, kept);
  return -1;
}

}  // namespace detail

/// Chooses by score which of the active tokens of each task stay active, and writes them to `kept`.
inline void select_tokens(Context& context, std::span<const SelectionTask> tasks, KeptTokens& kept) {
  kept.indices.clear();
  kept.indptr.assign(1, 0);
  kept.bad.clear();
  for (const SelectionTask& task : tasks) {
    kept.bad.push_back(detail::select_one(context, task, kept.indices));
    kept.indptr.push_back(std::ssize(kept.indices));
  }
}

}  // namespace lazyllm::cpu
