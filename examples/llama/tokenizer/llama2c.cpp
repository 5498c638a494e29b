#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <string>
#include <unordered_map>

#include "examples/llama/tokenizer/loaders.hpp"
#include "examples/llama/tokenizer/merge_pairs.hpp"

namespace llama {
namespace {

constexpr TokenId bos_token = 1;
constexpr TokenId eos_token = 2;
constexpr TokenId first_byte_token = 3;

struct Entry {
  float score;
  std::string text;
};

template <class T>
T read(std::string_view bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

/// The byte that an entry `<0xNN>` stands for.
std::optional<char> byte_of(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text.back() != '>') return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data() + 3, text.data() + 5, value, 16);
  if (error != std::errc() || end != text.data() + 5) return std::nullopt;
  return static_cast<char>(value);
}

class Llama2cTokenizer final : public Tokenizer {
 public:
  explicit Llama2cTokenizer(std::vector<Entry> entries) : entries_(std::move(entries)) {
    vocabulary_size_ = static_cast<Index>(entries_.size());
    special_ = {bos_token, {eos_token}};
    unread_tokens_ = {"<s>", "</s>"};
    for (std::size_t i = 0; i < entries_.size(); ++i) ids_.emplace(entries_[i].text, static_cast<TokenId>(i));
  }

  std::optional<TokenId> find(std::string_view text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

  std::vector<TokenId> encode(std::string_view text, bool add_bos) const override {
    std::vector<TokenId> tokens;
    if (add_bos) tokens.push_back(bos_token);
    if (!text.empty()) tokens.push_back(*find(" "));
    const auto continues = [&](std::size_t i) { return i < text.size() && (text[i] & 0xC0) == 0x80; };
    for (std::size_t start = 0; start < text.size();) {
      std::size_t end = start + 1;
      while (continues(end) && end - start < 4) ++end;
      const std::string_view character = text.substr(start, end - start);
      if (const auto token = find(character)) {
        tokens.push_back(*token);
      } else {
        for (const char byte : character) tokens.push_back(first_byte_token + static_cast<unsigned char>(byte));
      }
      start = end;
    }
    std::string joined;
    merge_pairs(tokens, [&](TokenId left, TokenId right) -> std::optional<Merge<float>> {
      joined.assign(text_of(left)).append(text_of(right));
      const auto token = find(joined);
      if (!token) return std::nullopt;
      const float score = entries_[static_cast<std::size_t>(*token)].score;
      // The threshold is llama2.c's; written so that NaN never merges.
      if (!(score > -1e10F)) return std::nullopt;
      return Merge<float>{-score, *token};
    });
    return tokens;
  }

 private:
  const std::string& text_of(TokenId token) const { return entries_[static_cast<std::size_t>(token)].text; }

  std::string token_bytes(TokenId previous, TokenId token) const override {
    if (token == bos_token || token == eos_token) return {};
    std::string_view text = text_of(token);
    if (const auto byte = byte_of(text)) return {*byte};
    if ((previous == no_token || previous == bos_token) && text.starts_with(' ')) text.remove_prefix(1);
    return std::string(text);
  }

  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, TokenId> ids_;  // views of entries_
};

}  // namespace

std::unique_ptr<Tokenizer> load_llama2c(std::string_view bytes, const std::string& file,
                                        std::optional<Index> vocabulary) {
  const auto fail = [&](const std::string& what) { throw tokenizer_error(file + ": " + what); };
  if (bytes.size() < 4) fail("too short for a llama2.c tokenizer");
  const auto longest = read<std::int32_t>(bytes, 0);
  if (longest < 1) fail(fmt::format("max_token_length is {}, must be at least 1", longest));

  std::vector<Entry> entries;
  std::size_t offset = 4;
  while (offset != bytes.size()) {
    if (bytes.size() - offset < 8) {
      fail(fmt::format("ends inside entry {}, of which {} bytes are there", entries.size(), bytes.size() - offset));
    }
    const auto score = read<float>(bytes, offset);
    const auto length = read<std::int32_t>(bytes, offset + 4);
    offset += 8;
    if (length < 0 || length > longest || static_cast<std::size_t>(length) > bytes.size() - offset) {
      fail(fmt::format("entry {} has length {}, allowed are 0 to {} and the {} bytes that are left", entries.size(),
                       length, longest, bytes.size() - offset));
    }
    entries.push_back({score, std::string(bytes.substr(offset, static_cast<std::size_t>(length)))});
    offset += static_cast<std::size_t>(length);
  }
  if (vocabulary && *vocabulary != std::ssize(entries)) {
    fail(fmt::format("has {} entries, the model's vocabulary {}: is this the model's tokenizer?", entries.size(),
                     *vocabulary));
  }
  constexpr std::size_t fewest = first_byte_token + 256;
  if (entries.size() < fewest) {
    fail(fmt::format("has {} entries, at least {} (three special tokens and the bytes) are needed", entries.size(),
                     fewest));
  }
  auto tokenizer = std::make_unique<Llama2cTokenizer>(std::move(entries));
  if (!tokenizer->find(" ")) fail("has no entry for the space that starts every text");
  return tokenizer;
}

}  // namespace llama
