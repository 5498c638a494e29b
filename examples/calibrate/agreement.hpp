#pragma once

#include <span>
#include <vector>

#include "examples/calibrate/search.hpp"
#include "examples/llama/model/any_model.hpp"

namespace llama {

/// A prompt and what the dense run makes of it; or, where the chat goes on, of the prompt of a second turn.
struct Reference {
  std::vector<TokenId> prompt;
  std::vector<TokenId> first_answer;  ///< of two turns the dense run's first answer, but for its last token; else empty
  std::vector<TokenId> follow_up;     ///< then that token and the second prompt, which run as one step
  std::vector<TokenId> tokens;        ///< greedy, at least one; only the last may be one that ends a text
  std::vector<float> logits;          ///< `[tokens x vocab]`, each row from before its token
};

/// Runs the prompt and up to `most` tokens after it, until one of `stop`, with a dense decoder; then, unless it is
/// empty, `follow_up` and as many again. Throws what `AnyDecoder::step` throws, and `std::invalid_argument` if a logit
/// is not finite.
Reference make_reference(AnyDecoder& dense, std::vector<TokenId> prompt, Index most, Tokens stop,
                         Tokens follow_up = {});

/// KL(softmax(p) || softmax(q)) in nats; both `[vocab]`.
double kl_divergence(std::span<const float> p, std::span<const float> q);

/// Runs the prompt from an empty sequence on and feeds the dense run's tokens, whatever the pruned run would have
/// chosen: so every position is compared after the same text. Of two turns the second answer counts.
Outcome agree(AnyDecoder& lazy, const Reference& reference);

}  // namespace llama
