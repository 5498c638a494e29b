#include "bench/evaluate/filters.hpp"

#include <algorithm>
#include <numeric>
#include <random>

#include "examples/llama/library.hpp"
#include "examples/llama/program/counted.hpp"

namespace llama {

std::vector<TokenId> cut_middle(std::vector<TokenId> tokens, Index longest) {
  if (longest < 2) fail("a prompt of at most ", counted(longest, "token"), " is out of range, at least 2");
  if (std::ssize(tokens) <= longest) return tokens;
  const Index half = longest / 2;
  tokens.erase(tokens.begin() + half, tokens.end() - half);
  return tokens;
}

std::vector<TokenId> keep_highest(Tokens tokens, std::span<const double> ranks, const FilterOptions& options) {
  if (!(options.keep > 0 && options.keep <= 1)) fail("keep ", options.keep, " is out of range (0, 1]");
  if (options.protect_first < 0 || options.protect_last < 0) {
    fail("protect_first ", options.protect_first, " and protect_last ", options.protect_last, " must be at least 0");
  }
  if (ranks.size() != tokens.size()) fail(counted(ranks.size(), "rank"), " for ", counted(tokens.size(), "token"));
  if (tokens.empty()) return {};
  const auto count = std::ssize(tokens);
  const Index first = std::min(options.protect_first, count);
  const Index last = std::max(first, count - std::min(options.protect_last, count));
  std::vector<Index> order(static_cast<std::size_t>(last - first));
  std::iota(order.begin(), order.end(), first);
  const Index from_ranks =
      std::clamp<Index>(lazyllm::keep_count(options.keep, count) - (count - last) - first, 0, last - first);
  std::ranges::stable_sort(order, std::greater<>(), [&](Index i) { return ranks[static_cast<std::size_t>(i)]; });
  order.resize(static_cast<std::size_t>(from_ranks));
  std::ranges::sort(order);

  std::vector<TokenId> kept(tokens.begin(), tokens.begin() + first);
  for (const Index i : order) kept.push_back(tokens[static_cast<std::size_t>(i)]);
  kept.insert(kept.end(), tokens.begin() + last, tokens.end());
  return kept;
}

std::vector<TokenId> keep_at_random(Tokens tokens, const FilterOptions& options, std::uint64_t seed) {
  // The engine's numbers are the same everywhere; the standard's distributions are not.
  std::mt19937_64 random(seed);
  std::vector<double> ranks(tokens.size());
  for (double& rank : ranks) rank = static_cast<double>(random() >> 11);
  return keep_highest(tokens, ranks, options);
}

std::vector<TokenId> keep_informative(Tokens tokens, std::span<const float> log_probabilities,
                                      const FilterOptions& options) {
  std::vector<double> information(log_probabilities.size());
  std::ranges::transform(log_probabilities, information.begin(), [](float value) { return -value; });
  return keep_highest(tokens, information, options);
}

}  // namespace llama
