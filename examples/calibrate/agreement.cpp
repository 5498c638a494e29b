#include "examples/calibrate/agreement.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "examples/llama/model/sampler.hpp"

namespace llama {

Reference make_reference(AnyDecoder& dense, std::vector<TokenId> prompt, Index most, Tokens stop, Tokens follow_up) {
  Sampler greedy{Sampling{}};
  Reference reference;
  const auto answer = [&](Tokens question) {
    reference.tokens.clear();
    reference.logits.clear();
    std::span<const float> logits = dense.step(question);
    for (;;) {
      reference.logits.insert(reference.logits.end(), logits.begin(), logits.end());
      reference.tokens.push_back(greedy.draw(logits));
      const bool stopped = std::ranges::find(stop, reference.tokens.back()) != stop.end();
      if (stopped || std::ssize(reference.tokens) >= most) return;
      logits = dense.step({&reference.tokens.back(), 1});
    }
  };
  reference.prompt = std::move(prompt);
  dense.clear();
  answer(reference.prompt);
  if (follow_up.empty()) return reference;
  reference.follow_up.assign(1, reference.tokens.back());
  reference.follow_up.insert(reference.follow_up.end(), follow_up.begin(), follow_up.end());
  reference.first_answer = std::move(reference.tokens);
  reference.first_answer.pop_back();
  answer(reference.follow_up);
  return reference;
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
  if (!reference.follow_up.empty()) {
    for (const TokenId& token : reference.first_answer) lazy.step({&token, 1});
    logits = lazy.step(reference.follow_up);
  }
  for (std::size_t i = 0;; ++i) {
    const auto dense = std::span(reference.logits).subspan(i * vocab, vocab);
    outcome.equal += greedy.draw(logits) == reference.tokens[i];
    outcome.kl += kl_divergence(dense, logits);
    if (i + 1 == reference.tokens.size()) return outcome;
    logits = lazy.step({&reference.tokens[i], 1});
  }
}

}  // namespace llama
