#include "examples/llama/program/model_options.hpp"

#include <filesystem>
#include <utility>

#include "examples/llama/base.hpp"
#include "examples/llama/program/command_line.hpp"

namespace llama {

void add_model_options(CLI::App& app, ModelOptions& options, std::vector<std::string> dtypes) {
  add_path(app, "--model", options.path,
           "Hugging Face directory or llama2.c .bin file; must not change while it is loaded")
      ->required();
  add_path(app, "--tokenizer", options.tokenizer,
           "tokenizer.json, tokenizer.model, tokenizer.bin or a directory (default: the model's directory)");
  app.add_option("--dtype", options.dtype, "type of weights, K/V and hidden states")
      ->check(CLI::IsMember(std::move(dtypes)))
      ->capture_default_str();
  add_number(app, "--threads", options.threads, "threads to compute with", {1, 1024});
}

void add_device_option(CLI::App& app, ModelOptions& options) {
  app.add_option("--device", options.device, "where the model runs; f16 runs on cuda only")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
}

std::unique_ptr<Tokenizer> open_tokenizer_for(const ModelOptions& options, const ModelConfig& config) {
  if (options.tokenizer.empty() && !std::filesystem::is_directory(options.path)) {
    fail("--tokenizer is needed with the model file ", options.path);
  }
  return open_tokenizer(options.tokenizer.empty() ? options.path : options.tokenizer, config.vocab);
}

std::vector<TokenId> stop_tokens(const ModelConfig& config, const Tokenizer* tokenizer) {
  std::vector<TokenId> tokens = config.eos_ids;
  if (tokenizer != nullptr) {
    tokens.insert(tokens.end(), tokenizer->stop_tokens().begin(), tokenizer->stop_tokens().end());
  }
  return tokens;
}

}  // namespace llama
