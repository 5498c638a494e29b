#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "bench/evaluate/filters.hpp"
#include "tests/examples/llama/checkpoint/support.hpp"

#include "examples/llama/base.hpp"

using namespace llama;
using testing::check_rejected;

namespace {

using TokenList = std::vector<TokenId>;

/// 100, 101, …
TokenList numbered(Index count) {
  TokenList tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 100);
  return tokens;
}

/// The obvious way: take away the lowest rank, the last of equal ones, until few enough are left.
TokenList slowly_kept(TokenList tokens, std::vector<double> ranks, const FilterOptions& options) {
  const auto count = std::ssize(tokens);
  const auto wanted = static_cast<Index>(std::ceil(options.keep * static_cast<double>(count) - 1e-9));
  std::vector<bool> is_protected(tokens.size());
  for (Index i = 0; i < count; ++i) {
    is_protected[static_cast<std::size_t>(i)] = i < options.protect_first || i >= count - options.protect_last;
  }
  while (std::ssize(tokens) > wanted) {
    std::ptrdiff_t lowest = -1;
    for (std::ptrdiff_t i = 0; i < std::ssize(tokens); ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (!is_protected[at] && (lowest < 0 || ranks[at] <= ranks[static_cast<std::size_t>(lowest)])) lowest = i;
    }
    if (lowest < 0) break;
    tokens.erase(tokens.begin() + lowest);
    ranks.erase(ranks.begin() + lowest);
    is_protected.erase(is_protected.begin() + lowest);
  }
  return tokens;
}

}  // namespace

TEST_CASE("cut_middle keeps the first and the last half exactly") {
  CHECK(cut_middle(numbered(10), 10) == numbered(10));
  CHECK(cut_middle(numbered(10), 11) == numbered(10));
  CHECK(cut_middle(numbered(10), 9) == TokenList{100, 101, 102, 103, 106, 107, 108, 109});
  CHECK(cut_middle(numbered(10), 8) == TokenList{100, 101, 102, 103, 106, 107, 108, 109});
  CHECK(cut_middle(numbered(10), 2) == TokenList{100, 109});
  CHECK(cut_middle(numbered(10), 3) == TokenList{100, 109});
  CHECK(cut_middle({}, 2).empty());
  check_rejected<std::invalid_argument>([] { cut_middle(numbered(3), 1); }, {"at most 1", "at least 2"});
}

TEST_CASE("keep_highest equals taking away the lowest one by one") {
  std::mt19937 random(3);
  for (int trial = 0; trial < 500; ++trial) {
    const TokenList tokens = numbered(static_cast<Index>(1 + random() % 30));
    std::vector<double> ranks(tokens.size());
    for (double& rank : ranks) rank = static_cast<double>(random() % 6);  // many ties
    const FilterOptions options{static_cast<double>(1 + random() % 10) / 10, static_cast<Index>(random() % 6),
                                static_cast<Index>(random() % 6)};
    CHECK(keep_highest(tokens, ranks, options) == slowly_kept(tokens, ranks, options));
  }
}

TEST_CASE("the protected tokens count as kept and always stay") {
  const std::vector<double> ranks = {0, 0, 9, 8, 7, 6, 5, 4, 0, 0};
  CHECK(keep_highest(numbered(10), ranks, {0.5, 2, 2}) == TokenList{100, 101, 102, 108, 109});
  CHECK(keep_highest(numbered(10), ranks, {0.1, 2, 2}) == TokenList{100, 101, 108, 109});
  CHECK(keep_highest(numbered(10), ranks, {0.1, 20, 20}) == numbered(10));
  CHECK(keep_highest(numbered(10), ranks, {1, 0, 0}) == numbered(10));
  CHECK(keep_highest({}, {}, {0.5, 1, 1}).empty());
}

TEST_CASE("what a filter cannot do") {
  const std::vector<double> ranks(4);
  check_rejected<std::invalid_argument>([&] { keep_highest(numbered(4), ranks, {0, 0, 1}); }, {"keep 0", "(0, 1]"});
  check_rejected<std::invalid_argument>([&] { keep_highest(numbered(4), ranks, {1.5, 0, 1}); }, {"keep 1.5", "(0, 1]"});
  check_rejected<std::invalid_argument>([&] { keep_highest(numbered(4), ranks, {NAN, 0, 1}); }, {"(0, 1]"});
  check_rejected<std::invalid_argument>([&] { keep_highest(numbered(4), ranks, {0.5, -1, 1}); }, {"protect_first -1"});
  check_rejected<std::invalid_argument>(
      [&] {
        keep_highest(numbered(5), ranks, {0.5, 0, 1});
      },
      {"4 ranks for 5 tokens"});
}

TEST_CASE("random drop: the seed decides, the order stays, each token has the same chance") {
  const TokenList tokens = numbered(40);
  const FilterOptions options{0.4, 3, 5};
  CHECK(keep_at_random(tokens, options, 7) == keep_at_random(tokens, options, 7));
  CHECK(keep_at_random(tokens, options, 7) != keep_at_random(tokens, options, 8));
  std::vector<int> kept_times(tokens.size());
  constexpr int trials = 2000;
  for (int seed = 0; seed < trials; ++seed) {
    const TokenList kept = keep_at_random(tokens, options, static_cast<std::uint64_t>(seed));
    REQUIRE(kept.size() == 16);
    REQUIRE(std::ranges::is_sorted(kept));
    for (const TokenId token : kept) ++kept_times[static_cast<std::size_t>(token - 100)];
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    CAPTURE(i);
    if (i < 3 || i >= 35) {
      CHECK(kept_times[i] == trials);
    } else {
      CHECK(kept_times[i] == doctest::Approx(trials * 8.0 / 32).epsilon(0.2));  // 5 standard deviations
    }
  }
}

TEST_CASE("compression keeps the least likely tokens") {
  const std::vector<float> log_probabilities = {0, -1, -5, -2, -5, -0.1F};
  CHECK(keep_informative(numbered(6), log_probabilities, {0.5, 0, 0}) == TokenList{102, 103, 104});
  CHECK(keep_informative(numbered(6), log_probabilities, {0.5, 1, 1}) == TokenList{100, 102, 105});
}
