#include "examples/ggml_engine/llama_cpp.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace ggml_engine {

namespace {

llama_model_ptr load(const std::string& path, bool vocabulary_only) {
  llama_model_params parameters = llama_model_default_params();
  parameters.vocab_only = vocabulary_only;
  parameters.n_gpu_layers = 0;
  llama_model_ptr model(llama_model_load_from_file(path.c_str(), parameters));
  if (!model) throw std::runtime_error(path + ": llama.cpp cannot read this file");
  return model;
}

}  // namespace

void log_errors_only() {
  const auto errors = [](ggml_log_level level, const char* text, void*) {
    static bool goes_on = false;  // whether a line of an error is continued
    goes_on = level == GGML_LOG_LEVEL_ERROR || (goes_on && level == GGML_LOG_LEVEL_CONT);
    if (goes_on) std::fputs(text, stderr);
  };
  llama_log_set(errors, nullptr);
}

Vocabulary::Vocabulary(const std::string& path)
    : model_(load(path, /*vocabulary_only=*/true)), vocabulary_(llama_model_get_vocab(model_.get())) {}

std::vector<std::int32_t> Vocabulary::tokens(const std::string& text) const {
  std::vector<std::int32_t> tokens(text.size() + 8);  // a token has at least one byte, but for those that are added
  const int count = llama_tokenize(vocabulary_, text.data(), static_cast<std::int32_t>(text.size()), tokens.data(),
                                   static_cast<std::int32_t>(tokens.size()), /*add_special=*/true,
                                   /*parse_special=*/true);
  if (count < 0) throw std::runtime_error("llama.cpp cannot split the prompt into tokens");
  tokens.resize(static_cast<std::size_t>(count));
  return tokens;
}

std::string Vocabulary::text(std::span<const std::int32_t> tokens) const {
  std::string text(16 * tokens.size() + 16, '\0');
  for (int attempt = 0; attempt < 2; ++attempt) {
    const int size = llama_detokenize(vocabulary_, tokens.data(), static_cast<std::int32_t>(tokens.size()), text.data(),
                                      static_cast<std::int32_t>(text.size()), /*remove_special=*/true,
                                      /*unparse_special=*/false);
    text.resize(static_cast<std::size_t>(std::abs(size)));
    if (size >= 0) break;
  }
  return text;
}

std::string Vocabulary::chat(const std::string& text) const {
  const char* const form = llama_model_chat_template(model_.get(), nullptr);
  const llama_chat_message message{.role = "user", .content = text.c_str()};
  std::string prompt(2 * text.size() + 1024, '\0');
  const int size = form == nullptr ? -1
                                   : llama_chat_apply_template(form, &message, 1, /*add_ass=*/true, prompt.data(),
                                                               static_cast<std::int32_t>(prompt.size()));
  if (size < 0 || static_cast<std::size_t>(size) > prompt.size()) return text;
  prompt.resize(static_cast<std::size_t>(size));
  return prompt;
}

bool Vocabulary::ends(std::int32_t token) const { return llama_vocab_is_eog(vocabulary_, token); }

LlamaCpp::LlamaCpp(const std::string& path, const Room& room) : model_(load(path, /*vocabulary_only=*/false)) {
  llama_context_params parameters = llama_context_default_params();
  parameters.n_ctx = static_cast<std::uint32_t>(room.context);
  parameters.n_batch = parameters.n_ctx;
  parameters.n_ubatch = static_cast<std::uint32_t>(std::min(room.rows, room.context));
  parameters.n_outputs_max = 1;  // its memory for logits is that of one token, as ours
  parameters.n_threads = parameters.n_threads_batch = room.threads;
  parameters.type_k = parameters.type_v = room.cache_type;
  context_.reset(llama_init_from_model(model_.get(), parameters));
  if (!context_) throw std::runtime_error("llama.cpp cannot run this model");
}

std::vector<float> LlamaCpp::run(std::span<const std::int32_t> tokens) {
  std::vector<llama_token> copy(tokens.begin(), tokens.end());
  if (llama_decode(context_.get(), llama_batch_get_one(copy.data(), static_cast<std::int32_t>(copy.size()))) != 0) {
    throw std::runtime_error("llama.cpp cannot run these tokens");
  }
  const float* const logits = llama_get_logits_ith(context_.get(), -1);
  return {logits, logits + llama_vocab_n_tokens(llama_model_get_vocab(model_.get()))};
}

void LlamaCpp::clear() { llama_memory_clear(llama_get_memory(context_.get()), /*data=*/false); }

}  // namespace ggml_engine
