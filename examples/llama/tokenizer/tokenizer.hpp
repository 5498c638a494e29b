#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "examples/llama/base.hpp"
#include "examples/llama/files/file_error.hpp"
#include "examples/llama/token_ids.hpp"

namespace llama {

/// The `previous` token of the first token of a text.
inline constexpr TokenId no_token = -1;

/// Thrown when a tokenizer or token id file is damaged or of a kind that is not supported. Names the file.
class tokenizer_error : public file_error {
 public:
  using file_error::file_error;
};

/// Special tokens of a vocabulary.
struct SpecialTokens {
  std::optional<TokenId> bos;  ///< starts a text
  std::vector<TokenId> stop;   ///< each ends a generated text; the first one is EOS
};

/// Text to token ids and back. Immutable after loading, so threads may share one.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Token ids of UTF-8 `text`. `add_bos` asks for what the vocabulary puts before a text, which may be nothing
  /// (Qwen, GPT-2). Never adds EOS.
  virtual std::vector<TokenId> encode(std::string_view text, bool add_bos) const = 0;

  /// Bytes that `token` adds to a text whose last token is `previous` (`no_token` or BOS at its start). They may end
  /// inside a UTF-8 sequence, see `TextStream`. Special tokens add nothing, and neither do ids from `vocabulary_size()`
  /// on, which checkpoints with padded embeddings can produce. Throws `std::invalid_argument` for a negative token.
  std::string decode(TokenId previous, TokenId token) const;

  /// One more than the largest token id.
  Index vocabulary_size() const { return vocabulary_size_; }

  std::optional<TokenId> bos() const { return special_.bos; }
  std::optional<TokenId> eos() const;

  /// Every token that ends a generated text, EOS first; Llama 3 chat models have several.
  const std::vector<TokenId>& stop_tokens() const { return special_.stop; }

  /// Texts of the special tokens that `encode` does not find in a text.
  const std::vector<std::string>& unread_tokens() const { return unread_tokens_; }

 protected:
  Tokenizer() = default;
  Tokenizer(const Tokenizer&) = default;
  Tokenizer& operator=(const Tokenizer&) = default;

  Index vocabulary_size_ = 0;
  SpecialTokens special_;
  std::vector<std::string> unread_tokens_;

 private:
  virtual std::string token_bytes(TokenId previous, TokenId token) const = 0;
};

/// Opens a Hugging Face `tokenizer.json` (BPE), a SentencePiece `tokenizer.model` or a llama2.c `tokenizer.bin`, told
/// apart by their content, or the first of these that directory `path` holds. For a `tokenizer.json` the files
/// `tokenizer_config.json` and `generation_config.json` beside it name BOS and EOS.
/// `vocabulary` is the number of entries that a llama2.c file must have (any by default).
/// Throws `tokenizer_error`.
std::unique_ptr<Tokenizer> open_tokenizer(const std::filesystem::path& path,
                                          std::optional<Index> vocabulary = std::nullopt);

/// Reads decimal token ids, separated by white space or commas, or one JSON array of them. Throws `tokenizer_error`
/// naming the line (or the array's entry) and the value when one is not in `[0, vocabulary)`.
std::vector<TokenId> read_token_ids(const std::filesystem::path& path, Index vocabulary);

/// Turns the bytes of successive tokens into whole UTF-8 characters. Bytes that cannot be UTF-8 become U+FFFD.
class TextStream {
 public:
  /// Adds `bytes` and returns the text that is complete now.
  std::string push(std::string_view bytes);

  /// Returns what is left, as the text ends here.
  std::string flush();

 private:
  std::string pending_;
};

}  // namespace llama
