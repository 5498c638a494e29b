#include "examples/llama/tokenizer/added_tokens.hpp"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>

#include "examples/llama/tokenizer/text.hpp"

namespace llama {
namespace {

/// As \w has it.
bool in_word(UChar32 character) {
  constexpr std::uint32_t categories = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  return u_hasBinaryProperty(character, UCHAR_ALPHABETIC) || u_hasBinaryProperty(character, UCHAR_JOIN_CONTROL) ||
         (U_GET_GC_MASK(character) & categories) != 0;
}

// The characters at the ends of a text, which is not empty; U+FFFD where it is not UTF-8.
UChar32 first_character(std::string_view text) { return unicode(text.substr(0, U8_MAX_LENGTH)).char32At(0); }

UChar32 last_character(std::string_view text) {
  const std::size_t size = std::min<std::size_t>(text.size(), U8_MAX_LENGTH);
  const icu::UnicodeString end = unicode(text.substr(text.size() - size));
  return end.char32At(end.length() - 1);
}

/// Length of the white space in which `text` ends.
std::size_t space_before(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size()) {
    const UChar32 character = last_character(text.substr(0, text.size() - length));
    if (!u_isUWhiteSpace(character)) break;
    length += U8_LENGTH(character);
  }
  return length;
}

/// Length of the white space with which `text` begins.
std::size_t space_after(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size()) {
    const UChar32 character = first_character(text.substr(length));
    if (!u_isUWhiteSpace(character)) break;
    length += U8_LENGTH(character);
  }
  return length;
}

bool stands_alone(std::string_view before, std::string_view after) {
  return (before.empty() || !in_word(last_character(before))) && (after.empty() || !in_word(first_character(after)));
}

}  // namespace

void AddedTokens::add(const std::string& content, Token token) {
  tokens_.emplace(content, token);
  lengths_.insert(content.size());
  starts_ += content.substr(0, 1);
}

void AddedTokens::split(std::string_view text,
                        const std::function<void(std::string_view part, std::size_t offset)>& on_text,
                        const std::function<void(TokenId)>& on_token) const {
  std::size_t start = 0;  // of what has not been said yet
  const auto flush = [&](std::size_t end) {
    if (end > start) on_text(text.substr(start, end - start), start);
  };
  for (std::size_t i = 0; (i = std::min(text.find_first_of(starts_, i), text.size())) < text.size();) {
    const auto found = longest_at(text.substr(i));
    if (found == tokens_.end()) {
      ++i;
      continue;
    }
    const Token& token = found->second;
    std::size_t first = i, end = i + found->first.size();
    i = end;
    if (token.single_word && !stands_alone(text.substr(0, first), text.substr(end))) continue;
    if (token.left_strip) first = std::max(start, first - space_before(text.substr(0, first)));
    if (token.right_strip) end += space_after(text.substr(end));
    flush(first);
    on_token(token.id);
    start = end;
  }
  flush(text.size());
}

AddedTokens::Tokens::const_iterator AddedTokens::longest_at(std::string_view text) const {
  for (const std::size_t length : lengths_) {
    if (length > text.size()) continue;
    const auto found = tokens_.find(text.substr(0, length));
    if (found != tokens_.end()) return found;
  }
  return tokens_.end();
}

}  // namespace llama
