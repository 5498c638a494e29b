#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "examples/llama/tokenizer/tokenizer.hpp"

namespace llama {

/// The loaders below read `bytes` (not kept) and name `file` in their errors, all of type `tokenizer_error`.
std::unique_ptr<Tokenizer> load_sentence_piece(std::string_view bytes, const std::string& file);

/// `vocabulary`: entries that there must be, any number by default.
std::unique_ptr<Tokenizer> load_llama2c(std::string_view bytes, const std::string& file,
                                        std::optional<Index> vocabulary);

/// JSON texts of the files beside `tokenizer.json`; empty where there is none.
struct HuggingFaceConfigs {
  std::string tokenizer_config;
  std::string generation_config;
};

std::unique_ptr<Tokenizer> load_hugging_face_bpe(std::string_view bytes, const std::string& file,
                                                 const HuggingFaceConfigs& configs);

}  // namespace llama
