#pragma once

#include <llama-cpp.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "examples/ggml_engine/forward.hpp"

namespace ggml_engine {

/// Keeps ggml and libllama from writing anything but errors to the standard error.
void log_errors_only();

/// The tokenizer of a GGUF file, which is libllama's.
class Vocabulary {
 public:
  /// Throws `std::runtime_error` if libllama cannot read it.
  explicit Vocabulary(const std::string& path);

  std::vector<std::int32_t> tokens(const std::string& text) const;
  std::string text(std::span<const std::int32_t> tokens) const;
  /// The prompt of a chat whose only message is `text`; `text` itself if the file has no template that libllama knows.
  std::string chat(const std::string& text) const;
  bool ends(std::int32_t token) const;  ///< whether an answer is over

 private:
  llama_model_ptr model_;
  const llama_vocab* vocabulary_;
};

/// llama.cpp itself, to compare with.
class LlamaCpp {
 public:
  /// Throws `std::runtime_error` if it cannot run the model.
  LlamaCpp(const std::string& path, const Room& room);

  /// Runs the next tokens. Returns the logits after the last one.
  std::vector<float> run(std::span<const std::int32_t> tokens);

  /// Forgets all tokens.
  void clear();

 private:
  llama_model_ptr model_;
  llama_context_ptr context_;
};

}  // namespace ggml_engine
