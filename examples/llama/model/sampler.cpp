#include "examples/llama/model/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "examples/llama/base.hpp"

namespace llama {

Sampler::Sampler(const Sampling& sampling) : sampling_(sampling), random_(sampling.seed) {
  if (!(sampling.temperature >= 0)) fail("temperature ", sampling.temperature, " is out of range, at least 0");
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) fail("top_p ", sampling.top_p, " is out of range (0, 1]");
}

TokenId Sampler::draw(std::span<const float> logits) {
  const auto bad = std::ranges::find_if(logits, [](float logit) { return !std::isfinite(logit); });
  if (bad != logits.end()) fail("the logit of token ", bad - logits.begin(), " is ", *bad, ", not finite");
  const auto highest = std::ranges::max_element(logits);
  if (sampling_.temperature == 0) return static_cast<TokenId>(highest - logits.begin());

  probabilities_.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    probabilities_[i] = std::exp(static_cast<double>(logits[i] - *highest) / sampling_.temperature);
  }
  order_.resize(logits.size());
  std::iota(order_.begin(), order_.end(), 0);
  const auto probability = [this](TokenId token) { return probabilities_[static_cast<std::size_t>(token)]; };
  std::ranges::stable_sort(order_, std::greater<>(), probability);
  const double total = std::accumulate(probabilities_.begin(), probabilities_.end(), 0.0);
  double nucleus = 0;
  std::size_t count = 0;
  while (count < order_.size() && nucleus < sampling_.top_p * total) nucleus += probability(order_[count++]);

  double left = std::uniform_real_distribution<>(0, nucleus)(random_);
  for (std::size_t i = 0; i + 1 < count; ++i) {
    left -= probability(order_[i]);
    if (left < 0) return order_[i];
  }
  return order_[count - 1];
}

}  // namespace llama
