#include "examples/llama/tokenizer/tokenizer.hpp"

#include <fmt/format.h>

#include "examples/llama/base.hpp"
#include "examples/llama/files/input_file.hpp"
#include "examples/llama/tokenizer/loaders.hpp"

namespace llama {
namespace {

enum class Format { hugging_face, sentence_piece, llama2c, unknown };

Format format_of(std::string_view bytes, const std::filesystem::path& path) {
  const std::size_t first = bytes.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && bytes[first] == '{') return Format::hugging_face;
  // llama2.c starts with a small little-endian int32; SentencePiece with field 1 (0x0A), its length, field 1 again.
  if (bytes.size() >= 4 && bytes[2] == 0 && bytes[3] == 0) return Format::llama2c;
  if (bytes.size() >= 3 && bytes[0] == '\n' && bytes[2] == '\n') return Format::sentence_piece;
  if (path.extension() == ".json") return Format::hugging_face;
  if (path.extension() == ".bin") return Format::llama2c;
  return Format::unknown;
}

std::string read_if_present(const std::filesystem::path& path) {
  return may_be_there(path) ? read_input(path) : std::string();
}

std::filesystem::path tokenizer_in(const std::filesystem::path& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tokenizer.bin"}) {
    if (may_be_there(folder / name)) return folder / name;
  }
  throw tokenizer_error(
      fmt::format("{}: holds none of tokenizer.json, tokenizer.model, tokenizer.bin", folder.string()));
}

}  // namespace

std::string Tokenizer::decode(TokenId previous, TokenId token) const {
  if (token < 0) fail("token id ", token, " to decode is negative");
  return token < vocabulary_size_ ? token_bytes(previous, token) : std::string();
}

std::optional<TokenId> Tokenizer::eos() const {
  return special_.stop.empty() ? std::nullopt : std::optional(special_.stop.front());
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::filesystem::path& path, std::optional<Index> vocabulary) {
  std::error_code ignored;  // reading the file says what is wrong with it
  const std::filesystem::path file = std::filesystem::is_directory(path, ignored) ? tokenizer_in(path) : path;
  const std::string bytes = read_input(file);
  switch (format_of(bytes, file)) {
    case Format::hugging_face:
      return load_hugging_face_bpe(bytes, file.string(),
                                   {read_if_present(file.parent_path() / "tokenizer_config.json"),
                                    read_if_present(file.parent_path() / "generation_config.json")});
    case Format::sentence_piece: return load_sentence_piece(bytes, file.string());
    case Format::llama2c: return load_llama2c(bytes, file.string(), vocabulary);
    case Format::unknown: break;
  }
  throw tokenizer_error(
      fmt::format("{}: is neither a tokenizer.json, a SentencePiece model nor a llama2.c tokenizer (a tiktoken file? "
                  "then use its tokenizer.json)",
                  file.string()));
}

}  // namespace llama
