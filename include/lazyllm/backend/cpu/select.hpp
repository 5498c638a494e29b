#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "lazyllm/backend/cpu/context.hpp"
#include "lazyllm/backend/operations.hpp"
#include "lazyllm/backend/score_order.hpp"

namespace lazyllm::cpu {

namespace detail {

using lazyllm::detail::to_size;

/// Scores as numbers that are in the same order; a protected key is above all others.
using SortKeys = std::span<std::uint32_t>;
constexpr std::uint32_t protected_key = std::numeric_limits<std::uint32_t>::max();

/// The `count`-th highest of some sort keys, and how many of those equal to it belong to the highest `count`.
struct Threshold {
  std::uint32_t key = 0;
  Index at_threshold = 0;
};

/// A radix search from the highest digit down: a linear pass for each, whatever the scores.
inline Threshold find_threshold(std::span<const std::uint32_t> sort_keys, Index count) {
  constexpr unsigned digit_bits = 11;
  Threshold threshold{.at_threshold = count};
  std::uint32_t fixed = 0;  // the digits of the key that are known
  for (const unsigned shift : {21U, 10U, 0U}) {
    std::array<std::uint32_t, 1 << digit_bits> histogram{};
    const std::uint32_t digit_mask = shift == 0 ? 1023 : 2047;
    for (const std::uint32_t key : sort_keys) {
      histogram[key >> shift & digit_mask] += (key & fixed) == threshold.key;
    }
    std::uint32_t digit = digit_mask;
    for (; histogram[digit] < threshold.at_threshold; --digit) threshold.at_threshold -= histogram[digit];
    threshold.key |= digit << shift;
    fixed |= digit_mask << shift;
  }
  return threshold;
}

/// Adds to `kept` the indices of the `count` highest sort keys, equal ones to the smaller index, ascending.
inline void keep_highest(std::span<const std::uint32_t> sort_keys, Index count, std::vector<Index>& kept) {
  const std::size_t old_size = kept.size();
  kept.resize(old_size + to_size(count));
  Index* const target = kept.data() + old_size;
  if (count == std::ssize(sort_keys)) return std::iota(target, target + count, Index{0});
  const Threshold threshold = find_threshold(sort_keys, count);
  Index size = 0;
  Index equals = 0;
  // Without a branch on the score: which ones are kept cannot be foreseen.
  for (Index i = 0; size < count; ++i) {
    const std::uint32_t key = sort_keys[to_size(i)];
    const Index higher = key > threshold.key;
    const Index equal = key == threshold.key;
    target[size] = i;
    size += higher | (equal & Index{equals < threshold.at_threshold});
    equals += equal;
  }
}

/// Takes out of what a task keeps, `kept` from `first` on, those keys that would be revived beyond its limit. Uses
/// `scratch`, `[keys]`, as are `sort_keys`.
inline void limit_revived(const SelectionTask& task, SortKeys sort_keys, SortKeys scratch, std::size_t first,
                          std::vector<Index>& kept) {
  std::size_t revived = 0;
  Index sure = 0;
  for (std::size_t i = first; i < kept.size(); ++i) {
    const auto key = to_size(kept[i]);
    if (task.revives[key] == 0) continue;
    sure += sort_keys[key] == protected_key;
    scratch[revived++] = sort_keys[key];
  }
  const Index count = std::max(task.max_revived, sure);
  if (static_cast<Index>(revived) <= count) return;
  const Threshold threshold = find_threshold(scratch.first(revived), count);
  Index equals = 0;
  const auto is_beyond = [&](Index index) {
    const auto key = to_size(index);
    if (task.revives[key] == 0) return false;
    return sort_keys[key] < threshold.key || (sort_keys[key] == threshold.key && equals++ >= threshold.at_threshold);
  };
  std::size_t size = first;
  for (std::size_t i = first; i < kept.size(); ++i) {
    const Index index = kept[i];
    if (!is_beyond(index)) kept[size++] = index;
  }
  kept.resize(size);
}

/// How many of the highest sort keys hold the share `task.p` of all scores, protected ones first. Uses `scratch`,
/// `[keys]`.
inline Index count_by_share(const SelectionTask& task, SortKeys sort_keys, SortKeys scratch) {
  float highest = 0;
  for (const float score : task.scores) highest = std::max(highest, std::abs(score));
  const lazyllm::detail::ScoreUnits units(highest, std::ssize(task.scores));
  std::int64_t wanted = 0;
  for (const float score : task.scores) wanted += units.of(score);
  wanted = units.share(task.p, wanted);
  Index count = 0;
  Index open = 0;
  for (std::size_t i = 0; i < sort_keys.size(); ++i) {
    if (sort_keys[i] == protected_key) {
      wanted -= units.of(task.scores[i]);
      ++count;
    } else {
      scratch[to_size(open++)] = sort_keys[i];
    }
  }
  // Few tokens hold most of the attention, so the scores are put in order only as far as they are needed.
  const auto end = scratch.begin() + open;
  auto ordered_end = scratch.begin();
  for (auto key = scratch.begin(); key != end && wanted > 0; ++key, ++count) {
    if (key == ordered_end) {
      const Index part = std::max(std::ssize(sort_keys) / 16, key - scratch.begin());
      ordered_end += std::min(part + 1, end - key);
      std::nth_element(key, ordered_end - 1, end, std::greater<>());
      std::sort(key, ordered_end, std::greater<>());
    }
    wanted -= units.of(lazyllm::detail::score_of(*key));
  }
  return count;
}

/// Adds what a task keeps to `kept`, or returns the index of its first score that is not finite, else -1.
inline Index select_one(Context& context, const SelectionTask& task, std::vector<Index>& kept) {
  const std::span<const float> scores = task.scores;
  const SortKeys both = context.scratch<std::uint32_t>(2 * std::ssize(scores));
  const SortKeys sort_keys = both.first(scores.size());
  const SortKeys scratch = both.last(scores.size());
  Index sure = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (!lazyllm::detail::is_finite(scores[i])) return static_cast<Index>(i);
    const bool protects = task.protects(task.keys[i]);
    sort_keys[i] = protects ? protected_key : lazyllm::detail::sort_key(scores[i]);
    sure += protects;
  }
  const Index count =
      task.top_p ? count_by_share(task, sort_keys, scratch) : std::clamp(task.k, sure, std::ssize(scores));
  const std::size_t first = kept.size();
  keep_highest(sort_keys, count, kept);
  if (!task.revives.empty()) limit_revived(task, sort_keys, scratch, first, kept);
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
