#include "examples/calibrate/agreement.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "examples/llama/model/sampler.hpp"

namespace llama {

Reference make_reference(AnyDecoder& dense, std::vector<TokenId> prompt, Index most, Tokens stop) {
  Sampler greedy{Sampling{}};
  Reference reference{std::move(prompt), {}, {}};
  dense.clear();
  std::span<const float> logits = dense.step(reference.prompt);
  for (;;) {
    reference.logits.insert(reference.logits.end(), logits.begin(), logits.end());
    reference.tokens.push_back(greedy.draw(logits));
    const bool stopped = std::ranges::find(stop, reference.tokens.back()) != stop.end();
    if (stopped || std::ssize(reference.tokens) >= most) return reference;
    logits = dense.step({&reference.tokens.back(), 1});
  }
}

double kl_divergence(std::span<const float> p, std::span<const float> q) {
  const auto log_sum = [](std::span<const float> logits) {
    const double highest = *std::ranges::max_element(logits);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - highest);
    return highest + std::log(sum);
  };
  const double p_sum = log_sum(p);
  const double q_sum = log_sum(q);
  double result = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i] - p_sum;
    result += std::exp(log_p) * (log_p - (q[i] - q_sum));
  }
  return std::max(result, 0.0);  // rounding can fall below
}

Outcome agree(AnyDecoder& lazy, const Reference& reference) {
  Sampler greedy{Sampling{}};
  const std::size_t vocab = reference.logits.size() / reference.tokens.size();
  Outcome outcome{.positions = std::ssize(reference.tokens)};
  lazy.clear();
  std::span<const float> logits = lazy.step(reference.prompt);
  for (std::size_t i = 0;; ++i) {
    const auto dense = std::span(reference.logits).subspan(i * vocab, vocab);
    outcome.equal += greedy.draw(logits) == reference.tokens[i];
    outcome.kl += kl_divergence(dense, logits);
    if (i + 1 == reference.tokens.size()) return outcome;
    logits = lazy.step({&reference.tokens[i], 1});
  }
}

}  // namespace llama
