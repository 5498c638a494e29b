#pragma once

#include <algorithm>
#include <optional>
#include <queue>
#include <tuple>
#include <vector>

#include "examples/llama/tokenizer/tokenizer.hpp"

namespace llama {

/// What two neighbouring tokens may become; the pair of lowest `priority` is merged first, the leftmost among equals.
template <class Priority>
struct Merge {
  Priority priority;
  TokenId token;
};

/// Byte pair encoding: merges neighbours of `tokens` until `find_merge(left, right)`, an `optional<Merge<Priority>>`,
/// has nothing for any pair. O(n log n): the pairs wait in a heap, those that are gone are dropped when they come up.
template <class FindMerge>
void merge_pairs(std::vector<TokenId>& tokens, FindMerge find_merge) {
  using Found = typename decltype(find_merge(TokenId{}, TokenId{}))::value_type;
  struct Candidate {
    Found merge;
    std::size_t left;
    TokenId left_token, right_token;
  };
  const auto later = [](const Candidate& a, const Candidate& b) {
    return std::tie(a.merge.priority, a.left) > std::tie(b.merge.priority, b.left);
  };

  const std::size_t count = tokens.size();
  std::vector<std::size_t> next(count), previous(count);
  for (std::size_t i = 0; i < count; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;
  }
  std::vector<Candidate> waiting;
  const auto candidate = [&](std::size_t left) -> std::optional<Candidate> {
    if (next[left] == count) return std::nullopt;
    const TokenId a = tokens[left], b = tokens[next[left]];
    const std::optional<Found> merge = find_merge(a, b);
    if (!merge) return std::nullopt;
    return Candidate{*merge, left, a, b};
  };
  for (std::size_t i = 0; i < count; ++i) {
    if (const auto found = candidate(i)) waiting.push_back(*found);
  }
  std::priority_queue queue(later, std::move(waiting));

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    const std::size_t right = next[best.left];
    if (tokens[best.left] != best.left_token || right == count || tokens[right] != best.right_token) continue;
    tokens[best.left] = best.merge.token;
    tokens[right] = no_token;
    next[best.left] = next[right];
    if (next[right] != count) previous[next[right]] = best.left;
    if (const auto found = candidate(best.left)) queue.push(*found);
    if (best.left != 0) {
      if (const auto found = candidate(previous[best.left])) queue.push(*found);
    }
  }
  std::erase(tokens, no_token);
}

}  // namespace llama
