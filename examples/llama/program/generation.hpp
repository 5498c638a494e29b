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

/// One generation, step by step: `prompt`, of one token at least, then one drawn token after the other, until one of
/// `stop` is drawn or `max_tokens` are. All of it is of the caller's and must live as long; `tokenizer` may be null.
template <class Decoder>
class Generation {
 public:
  Generation(Decoder& decoder, Tokens prompt, Index max_tokens, Tokens stop, const Tokenizer* tokenizer)
      : decoder_(decoder),
        next_(prompt),
        previous_(prompt.back()),
        left_(max_tokens),
        stop_(stop),
        tokenizer_(tokenizer) {}
  Generation(const Generation&) = delete;  // the next token is a member
  Generation& operator=(const Generation&) = delete;

  bool ended() const { return left_ == 0; }

  /// Runs the next step and draws its token by `draw(logits)`. Throws what both throw.
  template <class Draw>
  GeneratedStep step(const Draw& draw) {
    GeneratedStep step;
    const Clock::time_point start = Clock::now();
    step.logits = decoder_.step(next_);
    step.token = draw(step.logits);
    step.ms = milliseconds_since(start);
    const bool stops = std::ranges::find(stop_, step.token) != stop_.end();
    if (!stops && tokenizer_ != nullptr) step.text = text_.push(tokenizer_->decode(previous_, step.token));
    left_ = stops ? 0 : left_ - 1;
    previous_ = step.token;
    next_ = {&previous_, 1};
    return step;
  }

  /// The text that is left at the end.
  std::string rest() { return text_.flush(); }

 private:
  Decoder& decoder_;
  Tokens next_;
  TokenId previous_;
  Index left_;
  Tokens stop_;
  const Tokenizer* tokenizer_;
  TextStream text_;
};

/// A whole generation. Calls `on_step(step)` after each step and returns the text that is left at the end.
template <class Decoder, class Draw, class OnStep>
std::string generate_tokens(Decoder& decoder, Tokens prompt, Index max_tokens, Tokens stop, const Tokenizer* tokenizer,
                            const Draw& draw, const OnStep& on_step) {
  Generation generation(decoder, prompt, max_tokens, stop, tokenizer);
  while (!generation.ended()) on_step(generation.step(draw));
  return generation.rest();
}

}  // namespace llama
