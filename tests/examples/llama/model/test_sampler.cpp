#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <stdexcept>
#include <vector>

#include "examples/llama/model/sampler.hpp"

using namespace llama;

namespace {

std::vector<TokenId> draws(const Sampling& sampling, const std::vector<float>& logits, int count) {
  Sampler sampler(sampling);
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(sampler.draw(logits));
  return tokens;
}

std::vector<double> shares(const Sampling& sampling, const std::vector<float>& logits) {
  constexpr int count = 40000;
  std::vector<double> share(logits.size());
  for (const TokenId token : draws(sampling, logits, count)) share[static_cast<std::size_t>(token)] += 1.0 / count;
  return share;
}

std::set<TokenId> drawn(const Sampling& sampling, const std::vector<float>& logits) {
  const std::vector<TokenId> tokens = draws(sampling, logits, 2000);
  return {tokens.begin(), tokens.end()};
}

}  // namespace

TEST_CASE("temperature 0 takes the highest logit, of equal ones the first, whatever the other settings are") {
  CHECK(Sampler({}).draw(std::vector<float>{-3, 2, 7, 7, 1}) == 2);
  CHECK(Sampler({.temperature = 0, .top_p = 0.1F, .seed = 5}).draw(std::vector<float>{-3, 2, -7}) == 1);
  CHECK(Sampler({}).draw(std::vector<float>{-1e30F}) == 0);
}

TEST_CASE("tokens come as often as the softmax at the temperature says") {
  const double probabilities[] = {0.1, 0.4, 0.3, 0.2};
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)) + 50);
  for (const float temperature : {0.5F, 1.0F, 2.0F}) {
    const std::vector<double> share = shares({.temperature = temperature, .seed = 3}, logits);
    double total = 0;
    for (const double p : probabilities) total += std::pow(p, 1 / temperature);
    for (std::size_t i = 0; i < 4; ++i) {
      // Five standard deviations of a share of 40000 draws are at most 0.0125.
      CHECK(std::abs(share[i] - std::pow(probabilities[i], 1 / temperature) / total) < 0.0125);
    }
  }
}

TEST_CASE("top_p draws among the smallest set of likely tokens that holds the share, in their proportions") {
  const std::vector<float> equal(4, 1.5F);
  CHECK(drawn({.temperature = 1, .top_p = 0.25F}, equal) == std::set<TokenId>{0});
  CHECK(drawn({.temperature = 1, .top_p = 0.5F}, equal) == std::set<TokenId>{0, 1});
  CHECK(drawn({.temperature = 1, .top_p = std::nextafter(0.5F, 1.0F)}, equal) == std::set<TokenId>{0, 1, 2});
  CHECK(drawn({.temperature = 1, .top_p = 1}, equal) == std::set<TokenId>{0, 1, 2, 3});

  const std::vector<float> ascending = {0, 1, 2, 3};
  CHECK(drawn({.temperature = 1, .top_p = 1e-6F}, ascending) == std::set<TokenId>{3});
  const std::vector<double> share = shares({.temperature = 1, .top_p = 0.8F, .seed = 9}, ascending);
  CHECK(share[0] == 0);
  CHECK(share[1] == 0);
  CHECK(std::abs(share[2] - 1 / (1 + std::exp(1.0))) < 0.0125);
}

TEST_CASE("a seed draws the same tokens again, another seed others") {
  const std::vector<float> logits(50, 0.0F);
  const std::vector<TokenId> first = draws({.temperature = 1, .seed = 7}, logits, 100);
  CHECK(draws({.temperature = 1, .seed = 7}, logits, 100) == first);
  CHECK(draws({.temperature = 1, .seed = 8}, logits, 100) != first);
  CHECK(draws({.temperature = 1, .seed = (std::uint64_t{1} << 32) + 7}, logits, 100) != first);
}

TEST_CASE("extreme temperatures and logits do not overflow") {
  CHECK(drawn({.temperature = 1e-40F}, {1, 3, 2}) == std::set<TokenId>{1});
  CHECK(drawn({.temperature = std::numeric_limits<float>::max()}, {1, 3, 2}) == std::set<TokenId>{0, 1, 2});
  constexpr float huge = std::numeric_limits<float>::max();
  CHECK(drawn({.temperature = 1}, {-huge, huge, 0}) == std::set<TokenId>{1});
}

TEST_CASE("settings out of range and logits that are not finite are errors that name them") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float infinity = std::numeric_limits<float>::infinity();
  CHECK_THROWS_WITH_AS(Sampler({.temperature = -0.5F}), doctest::Contains("temperature -0.5"), std::invalid_argument);
  CHECK_THROWS_AS(Sampler({.temperature = nan}), std::invalid_argument);
  for (const float top_p : {0.0F, -1.0F, 1.01F, nan}) {
    CHECK_THROWS_WITH_AS(Sampler({.temperature = 1, .top_p = top_p}), doctest::Contains("(0, 1]"),
                         std::invalid_argument);
  }
  for (const float temperature : {0.0F, 1.0F}) {
    Sampler sampler({.temperature = temperature});
    for (const float bad : {nan, infinity, -infinity}) {
      CHECK_THROWS_WITH_AS(sampler.draw(std::vector<float>{1, 2, bad, 4}), doctest::Contains("token 2 is"),
                           std::invalid_argument);
    }
    CHECK(sampler.draw(std::vector<float>{1, 200}) == 1);
  }
}
