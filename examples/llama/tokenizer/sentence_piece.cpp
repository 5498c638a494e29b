#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <charconv>

#include "examples/llama/tokenizer/loaders.hpp"

namespace llama {
namespace {

constexpr std::string_view word_start = "\u2581";

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string_view bytes, const std::string& file) {
    const auto status = processor_.LoadFromSerializedProto({bytes.data(), bytes.size()});
    if (!status.ok()) {
      throw tokenizer_error(fmt::format("{}: not a whole SentencePiece model: {}", file, status.ToString()));
    }
    vocabulary_size_ = processor_.GetPieceSize();
    if (processor_.bos_id() >= 0) special_.bos = processor_.bos_id();
    if (processor_.eos_id() >= 0) special_.stop.push_back(processor_.eos_id());
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      if (processor_.IsControl(id)) unread_tokens_.push_back(processor_.IdToPiece(id));
    }
  }

  std::vector<TokenId> encode(std::string_view text, bool add_bos) const override {
    std::vector<TokenId> tokens;
    const auto status = processor_.Encode({text.data(), text.size()}, &tokens);
    if (!status.ok()) throw tokenizer_error("SentencePiece cannot encode the text: " + status.ToString());
    if (add_bos && special_.bos) tokens.insert(tokens.begin(), *special_.bos);
    return tokens;
  }

 private:
  std::string token_bytes(TokenId previous, TokenId token) const override {
    if (processor_.IsControl(token)) return {};
    const std::string& piece = processor_.IdToPiece(token);
    if (processor_.IsByte(token)) {
      // The library has checked at loading that such a piece reads <0xNN>.
      unsigned value = 0;
      std::from_chars(piece.data() + 3, piece.data() + 5, value, 16);
      return {static_cast<char>(value)};
    }
    if (processor_.IsUnknown(token)) return " \u2047 ";  // as the library writes it
    std::string text;
    for (std::size_t start = 0; start < piece.size();) {
      const std::size_t mark = std::min(piece.find(word_start, start), piece.size());
      text.append(piece, start, mark - start);
      if (mark == piece.size()) break;
      text += ' ';
      start = mark + word_start.size();
    }
    const bool starts_text = previous == no_token || previous == special_.bos;
    if (starts_text && text.starts_with(' ')) text.erase(0, 1);
    return text;
  }

  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<Tokenizer> load_sentence_piece(std::string_view bytes, const std::string& file) {
  return std::make_unique<SentencePieceTokenizer>(bytes, file);
}

}  // namespace llama
