#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "lazyllm/backend/cpu/context.hpp"
#include "lazyllm/policy/selection.hpp"

namespace lazyllm::cpu {

namespace detail {

/// Adds to `kept` the `count` highest of `ranks`, equal ones to the smaller index, ascending.
inline void keep_highest(std::span<const float> ranks, Index count, std::span<float> scratch,
                         std::vector<Index>& kept) {
  std::copy(ranks.begin(), ranks.end(), scratch.begin());
  const auto nth = scratch.begin() + (count - 1);
  std::nth_element(scratch.begin(), nth, scratch.end(), std::greater<>());
  const float threshold = *nth;
  Index at_threshold = 1 + std::count(scratch.begin(), nth, threshold);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] > threshold || (ranks[i] == threshold && at_threshold-- > 0)) {
      kept.push_back(static_cast<Index>(i));
    }
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
  double total = 0;
  double held = 0;
  Index protected_count = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (!std::isfinite(scores[i])) return static_cast<Index>(i);
    total += scores[i];
    if (selection.protects(active[i], tokens)) {
      held += scores[i];
      ++protected_count;
      scores[i] = protected_rank;
    }
  }
  const std::span<float> scratch = context.scratch(std::ssize(scores));
  Index count = std::max(selection.count, protected_count);
  if (selection.kind == Selection::Kind::mass) {
    std::partition_copy(scores.begin(), scores.end(), scratch.begin(), scratch.rbegin(),
                        [](float rank) { return rank != protected_rank; });
    const std::span<float> open = scratch.first(scores.size() - static_cast<std::size_t>(protected_count));
    std::sort(open.begin(), open.end(), std::greater<>());
    const double wanted = selection.mass * total - 1e-9;
    count = protected_count;
    for (std::size_t i = 0; i < open.size() && held < wanted; ++i, ++count) held += open[i];
  }
  detail::keep_highest(scores, count, scratch, kept);
  return -1;
}

}  // namespace lazyllm::cpu
