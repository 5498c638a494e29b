#pragma once

#include <span>
#include <vector>

#include "examples/calibrate/search.hpp"
#include "examples/llama/model/any_model.hpp"

namespace llama {

/// A prompt and what the dense run makes of it.
struct Reference {
  std::vector<TokenId> prompt;
  std::vector<TokenId> tokens;  ///< greedy, at least one; only the last may be one that ends a text
  std::vector<float> logits;    ///< `[tokens x vocab]`, each row from before its token
};

/// Runs the prompt and up to `most` tokens after it, until one of `stop`, with a dense
/// decoder. Throws what `AnyDecoder::step` throws, and
/// `std::invalid_argument` if a logit is not finite.
Reference make_reference(AnyDecoder& dense, std::vector<TokenId> prompt, Index most, Tokens stop);

/// KL(softmax(p) || softmax(q)) in nats; both `[vocab]`.
double kl_divergence(std::span<const float> p, std::span<const float> q);

/// Runs the prompt from an empty sequence on and feeds the dense run's tokens, whatever the pruned run would have
/// chosen: so every position is compared after the same text.
Outcome agree(AnyDecoder& lazy, const Reference& reference);

}  // namespace llama
