#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "examples/llama/checkpoint/model_config.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"
#include "lazyllm/error.hpp"

namespace lazyllm::llama {

/// The tokenizer at `tokenizer`, or, where that is empty, the one in the directory `model`. Throws as `open_tokenizer`,
/// and `lazyllm::invalid_argument` if there is no place to look.
inline std::unique_ptr<Tokenizer> open_tokenizer_for(const std::string& model, const std::string& tokenizer,
                                                     const ModelConfig& config) {
  if (tokenizer.empty() && !std::filesystem::is_directory(model)) {
    detail::fail("--tokenizer is needed with the model file ", model);
  }
  return open_tokenizer(tokenizer.empty() ? model : tokenizer, config.vocab);
}

/// The tokens that end a text, by the model's configuration and by its tokenizer, which may be null.
inline std::vector<TokenId> stop_tokens(const ModelConfig& config, const Tokenizer* tokenizer) {
  std::vector<TokenId> tokens = config.eos_ids;
  if (tokenizer != nullptr) {
    tokens.insert(tokens.end(), tokenizer->stop_tokens().begin(), tokenizer->stop_tokens().end());
  }
  return tokens;
}

}  // namespace lazyllm::llama
