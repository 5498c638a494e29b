#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "examples/llama/checkpoint/model_config.hpp"
#include "examples/llama/model/placement.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

namespace CLI {
class App;
}

namespace llama {

/// The program options that say which model runs and how, the same in every program of this host.
struct ModelOptions {
  std::string path;
  std::string tokenizer;  ///< path; empty: the one in the model's directory
  Placement placement{.threads = 2};

  /// Where the tokenizer is, and what is beside it.
  const std::string& tokenizer_path() const { return tokenizer.empty() ? path : tokenizer; }
};

/// Adds `--model`, `--tokenizer`, `--device`, `--dtype`, `--weights` and `--threads`. `options` must outlive the
/// parsing.
void add_model_options(CLI::App& app, ModelOptions& options);

/// Adds `--chat`. `chat` must outlive the parsing.
void add_chat_option(CLI::App& app, bool& chat);

/// The tokenizer of a model with `config`. Throws as `open_tokenizer`, and `std::invalid_argument` if there is no
/// place to look.
std::unique_ptr<Tokenizer> open_tokenizer_for(const ModelOptions& options, const ModelConfig& config);

/// The tokens that end a text, by the model's configuration and by its tokenizer, which may be null.
std::vector<TokenId> stop_tokens(const ModelConfig& config, const Tokenizer* tokenizer);

/// The longest sequence that `check_length` lets pass, in tokens.
inline Index longest_sequence(const ModelConfig& config) {
  return std::min(config.context, config.sliding_window.value_or(config.context));
}

}  // namespace llama
