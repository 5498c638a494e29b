#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "examples/llama/tokenizer/tokenizer.hpp"

namespace llama {

/// Tokens that are found in a text before anything else is; the longest wins where several start.
class AddedTokens {
 public:
  struct Token {
    TokenId id = no_token;
    bool single_word = false;  ///< only where no letter, digit or underscore touches it
    bool left_strip = false;   ///< takes the white space before it
    bool right_strip = false;  ///< takes the white space after it
  };

  /// `content` is UTF-8, not empty.
  void add(const std::string& content, Token token);

  /// Calls `on_text(part, offset)` and `on_token(id)` in the order of UTF-8 `text`; never with empty parts.
  void split(std::string_view text, const std::function<void(std::string_view part, std::size_t offset)>& on_text,
             const std::function<void(TokenId)>& on_token) const;

 private:
  using Tokens = std::map<std::string, Token, std::less<>>;

  Tokens::const_iterator longest_at(std::string_view text) const;

  Tokens tokens_;
  std::set<std::size_t, std::greater<>> lengths_;
  std::string starts_;
};

}  // namespace llama
