#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "examples/llama/base.hpp"
#include "examples/llama/program/timing.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

namespace llama {

/// What one step of a generation gave.
struct GeneratedStep {
  TokenId token = no_token;
  std::span<const float> logits;  ///< `[vocab]`, valid until the next step
  double ms = 0;                  ///< of the step and of drawing its token
  std::string text;               ///< that is complete with the token; none for a stop token or without a tokenizer
};

/// Runs `prompt`, of one token at least, then one drawn token after the other, until one of `stop` is drawn or
/// `max_tokens` are. Calls `draw(logits)` for each token and then `on_step(step)`. Returns the text that is left at the
/// end. `tokenizer` may be null. Throws what the decoder and the functions throw.
template <class Decoder, class Draw, class OnStep>
std::string generate_tokens(Decoder& decoder, Tokens prompt, Index max_tokens, Tokens stop, const Tokenizer* tokenizer,
                            const Draw& draw, const OnStep& on_step) {
  TextStream text;
  TokenId previous = prompt.back();
  Tokens next = prompt;
  for (Index count = 0; count < max_tokens; ++count) {
    GeneratedStep step;
    const Clock::time_point start = Clock::now();
    step.logits = decoder.step(next);
    step.token = draw(step.logits);
    step.ms = milliseconds_since(start);
    const bool stops = std::ranges::find(stop, step.token) != stop.end();
    if (!stops && tokenizer != nullptr) step.text = text.push(tokenizer->decode(previous, step.token));
    on_step(step);
    if (stops) break;
    previous = step.token;
    next = {&previous, 1};
  }
  return text.flush();
}

}  // namespace llama
