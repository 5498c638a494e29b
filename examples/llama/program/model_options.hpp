#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "examples/llama/checkpoint/model_config.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

namespace CLI {
class App;
}

namespace llama {

/// The program options that say which model runs and how, the same in every program of this host.
struct ModelOptions {
  std::string path;
  std::string tokenizer;       ///< path; empty: the one in the model's directory
  std::string dtype = "f32";   ///< bf16, or on a CUDA device f16
  std::string device = "cpu";  ///< or cuda
  int threads = 2;
};

/// Adds `--model`, `--tokenizer`, `--dtype`, one of `dtypes`, and `--threads`. `options` must outlive the parsing.
void add_model_options(CLI::App& app, ModelOptions& options, std::vector<std::string> dtypes = {"f32", "bf16"});

/// Adds `--device`. `options` must outlive the parsing.
void add_device_option(CLI::App& app, ModelOptions& options);

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
