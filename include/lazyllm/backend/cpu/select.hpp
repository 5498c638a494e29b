#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "lazyllm/backend/cpu/context.hpp"
#include "lazyllm/policy/selection.hpp"

namespace lazyllm::cpu {

namespace detail {

/// The `count`-th highest of `ranks`, and how many of those equal to it belong to the highest `count`.
struct Threshold {
  std::uint32_t key = 0;
  Index at_threshold = 0;
};

/// Numbers in the order of the ranks, which are not NaN; both zeros have the same.
inline std::uint32_t sort_key(float rank) {
  const auto bits = std::bit_cast<std::uint32_t>(rank + 0.0F);
  return bits >> 31 ? ~bits : bits | 0x80000000U;
}

/// A radix search from the highest digit down: a linear pass for each, whatever the ranks.
inline Threshold find_threshold(std::span<const float> ranks, Index count) {
  constexpr unsigned digit_bits = 11;
  Threshold threshold{.at_threshold = count};
  std::uint32_t fixed = 0;  // the digits of the key that are known
  for (const unsigned shift : {21U, 10U, 0U}) {
    std::array<std::uint32_t, 1 << digit_bits> histogram{};
    const std::uint32_t digit_mask = shift == 0 ? 1023 : 2047;
    for (const float rank : ranks) {
      const std::uint32_t key = sort_key(rank);
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
    const std::uint32_t key = sort_key(ranks[static_cast<std::size_t>(i)]);
    const Index higher = key > threshold.key;
    const Index equal = key == threshold.key;
    target[size] = i;
    size += higher | (equal & Index{equals < threshold.at_threshold});
    equals += equal;
  }
}

}  // namespace detail

/// Chooses by score which of a sequence's active tokens stay active.
/// \param selection  of kind `count` or `mass`
/// \param tokens     tokens of the sequence so far
/// \param active     `[keys]` positions of the active tokens, ascending
/// \param scores     `[keys]` finite scores; used as scratch memory
/// \param kept       output, appended: ascending indices into `active`
/// \return -1, or the index of a score that is not finite, and then `kept` is not to be used
inline Index select(Context& context, const Selection& selection, Index tokens, Positions active,
                    std::span<float> scores, std::vector<Index>& kept) {
  constexpr float protected_rank = std::numeric_limits<float>::infinity();
  const bool by_mass = selection.kind == Selection::Kind::mass;
  const double total = by_mass ? std::accumulate(scores.begin(), scores.end(), 0.0) : 0;
  double held = 0;
  Index protected_count = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (!std::isfinite(scores[i])) return static_cast<Index>(i);
    if (selection.protects(active[i], tokens)) {
      held += scores[i];
      ++protected_count;
      scores[i] = protected_rank;
    }
  }
  Index count = std::max(selection.count, protected_count);
  if (by_mass) {
    const std::span<float> scratch = context.scratch(std::ssize(scores));
    const auto open_end =
        std::ranges::copy_if(scores, scratch.begin(), [](float rank) { return rank != protected_rank; }).out;
    const double wanted = selection.mass * total - 1e-9;
    count = protected_count;
    // Few tokens hold most of the attention, so the ranks are put in order only as far as they are needed.
    auto ordered_end = scratch.begin();
    for (auto rank = scratch.begin(); rank != open_end && held < wanted; ++rank, ++count) {
      if (rank == ordered_end) {
        const Index part = std::max(std::ssize(scores) / 16, rank - scratch.begin());
        ordered_end += std::min(part + 1, open_end - rank);
        std::nth_element(rank, ordered_end - 1, open_end, std::greater<>());
        std::sort(rank, ordered_end, std::greater<>());
      }
      held += *rank;
    }
  }
  detail::keep_highest(scores, count, kept);
  return -1;
}

}  // namespace lazyllm::cpu
