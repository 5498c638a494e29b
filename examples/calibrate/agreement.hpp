#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <utility>
#include <vector>

#include "examples/calibrate/search.hpp"
#include "examples/llama/model/cpu.hpp"
#include "examples/llama/model/sampler.hpp"

namespace llama {

/// A prompt and what the dense run makes of it.
struct Reference {
  std::vector<TokenId> prompt;
  std::vector<TokenId> tokens;  ///< greedy, at least one; only the last may be one that ends a text
  std::vector<float> logits;    ///< `[tokens x vocab]`, each row from before its token
};

/// Runs the prompt and up to `most` tokens after it, until one of `stop`. Throws what `DenseDecoder::step` throws, and
/// `std::invalid_argument` if a logit is not finite.
template <class T>
Reference make_reference(DenseDecoder<T>& decoder, std::vector<TokenId> prompt, Index most, Tokens stop) {
  Sampler greedy{Sampling{}};
  Reference reference{std::move(prompt), {}, {}};
  decoder.clear();
  std::span<const float> logits = decoder.step(reference.prompt);
  for (;;) {
    reference.logits.insert(reference.logits.end(), logits.begin(), logits.end());
    reference.tokens.push_back(greedy.draw(logits));
    const bool stopped = std::ranges::find(stop, reference.tokens.back()) != stop.end();
    if (stopped || std::ssize(reference.tokens) >= most) return reference;
    logits = decoder.step({&reference.tokens.back(), 1});
  }
}

/// KL(softmax(p) || softmax(q)) in nats; both `[vocab]`.
inline double kl_divergence(std::span<const float> p, std::span<const float> q) {
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

/// Runs the prompt from an empty sequence on and feeds the dense run's tokens, whatever the pruned run would have
/// chosen: so every position is compared after the same text. A choice that the dense run finds at least half as likely
/// as its own counts as equal: there it hardly decides itself, and rounding alone can turn it.
template <class T>
Outcome agree(LazyDecoder<T>& decoder, const Reference& reference) {
  Sampler greedy{Sampling{}};
  const std::size_t vocab = reference.logits.size() / reference.tokens.size();
  Outcome outcome{.positions = std::ssize(reference.tokens)};
  decoder.clear();
  std::span<const float> logits = decoder.step(reference.prompt);
  for (std::size_t i = 0;; ++i) {
    const auto dense = std::span(reference.logits).subspan(i * vocab, vocab);
    const auto choice = static_cast<std::size_t>(greedy.draw(logits));
    const auto own = static_cast<std::size_t>(reference.tokens[i]);
    const bool equal = dense[choice] >= dense[own] - std::numbers::ln2_v<float>;
    if (equal && outcome.equal == static_cast<Index>(i)) ++outcome.equal;
    outcome.kl += kl_divergence(dense, logits);
    if (i + 1 == reference.tokens.size()) return outcome;
    logits = decoder.step({&reference.tokens[i], 1});
  }
}

}  // namespace llama
