#pragma once

#include <string>
#include <utility>
#include <vector>

#include "examples/llama/generate/run.hpp"
#include "examples/llama/model/any_model.hpp"
#include "examples/llama/model/sampler.hpp"
#include "examples/llama/program/progress.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

namespace llama {

/// What a run keeps besides tokens, text and figures.
struct Recording {
  bool trace = false;          ///< the active positions of each layer of each step
  bool logits = false;         ///< of each step
  bool active_layers = false;  ///< what a report shows
};

/// Generates an answer to a prompt, as often as it is asked.
class Generator {
 public:
  /// `tokenizer`, of the caller's, may be null. Throws as `Sampler`.
  Generator(std::vector<TokenId> prompt, Index max_tokens, const Sampling& sampling, const Tokenizer* tokenizer,
            std::vector<TokenId> stop, const Recording& recording)
      : prompt_(std::move(prompt)),
        max_tokens_(max_tokens),
        sampler_(sampling),
        tokenizer_(tokenizer),
        stop_(std::move(stop)),
        recording_(recording) {}

  /// Prompt and answer from an empty sequence on. Prints the text as it grows, or token ids without a tokenizer, if
  /// `stream`. Throws what the decoder throws.
  Run generate(AnyDecoder& decoder, bool stream);

  /// The same of two decoders whose steps take turns, so that a machine whose speed drifts treats both alike. Prints
  /// nothing.
  std::pair<Run, Run> generate_in_turn(AnyDecoder& first, AnyDecoder& second);

 private:
  class Ongoing;

  std::vector<TokenId> prompt_;
  Index max_tokens_;
  Sampler sampler_;
  const Tokenizer* tokenizer_;
  std::vector<TokenId> stop_;
  Recording recording_;
  StatusLine status_;
};

}  // namespace llama
