#include "examples/llama/program/model_options.hpp"

#include <filesystem>
#include <system_error>

#include "examples/llama/base.hpp"
#include "examples/llama/program/command_line.hpp"

namespace llama {

void add_model_options(CLI::App& app, ModelOptions& options) {
  add_path(app, "--model", options.path,
           "Hugging Face directory or llama2.c .bin file; must not change while it is loaded")
      ->required();
  add_path(app, "--tokenizer", options.tokenizer,
           "tokenizer.json, tokenizer.model, tokenizer.bin or a directory (default: the model's directory)");
  app.add_option("--device", options.placement.device, "where the model runs")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--dtype", options.placement.dtype, "type of weights, K/V and hidden states; f16 runs on cuda only")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->capture_default_str();
  add_weights_option(app, options.placement.int8);
  add_number(app, "--threads", options.placement.threads, "threads to compute with on the CPU", {1, 1024});
}

void add_chat_option(CLI::App& app, bool& chat) {
  app.add_flag("--chat", chat,
               "put prompts as the model's chat template does, of chat_template.jinja or tokenizer_config.json");
}

std::unique_ptr<Tokenizer> open_tokenizer_for(const ModelOptions& options, const ModelConfig& config) {
  std::error_code ignored;
  if (options.tokenizer.empty() && !std::filesystem::is_directory(options.path, ignored)) {
    fail("--tokenizer is needed with the model file ", options.path);
  }
  return open_tokenizer(options.tokenizer_path(), config.vocab);
}

std::vector<TokenId> stop_tokens(const ModelConfig& config, const Tokenizer* tokenizer) {
  std::vector<TokenId> tokens = config.eos_ids;
  if (tokenizer != nullptr) {
    tokens.insert(tokens.end(), tokenizer->stop_tokens().begin(), tokenizer->stop_tokens().end());
  }
  return tokens;
}

}  // namespace llama
