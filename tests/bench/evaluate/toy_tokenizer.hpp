#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "examples/llama/tokenizer/tokenizer.hpp"

namespace llama::test {

/// Every byte is a token, for the fixture models with their vocabulary of 97; the line feed is token `line_feed`.
class ToyTokenizer final : public Tokenizer {
 public:
  explicit ToyTokenizer(TokenId line_feed) : line_feed_(line_feed) {
    vocabulary_size_ = 97;
    special_ = {1, {2}};
  }

  std::vector<TokenId> encode(std::string_view text, bool add_bos) const override {
    std::vector<TokenId> tokens;
    if (add_bos) tokens.push_back(1);
    for (const char c : text) {
      tokens.push_back(c == '\n' ? line_feed_ : static_cast<TokenId>(static_cast<unsigned char>(c) % 94 + 3));
    }
    return tokens;
  }

 private:
  std::string token_bytes(TokenId, TokenId token) const override {
    return token < 3 ? "" : " w" + std::to_string(token);
  }

  TokenId line_feed_;
};

}  // namespace llama::test
