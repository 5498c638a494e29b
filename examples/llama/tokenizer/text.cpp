#include "examples/llama/tokenizer/text.hpp"

#include <fmt/format.h>
#include <unicode/uchar.h>
#include <unicode/utf8.h>
#include <unicode/utypes.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <map>
#include <new>

#include "examples/llama/tokenizer/tokenizer.hpp"

namespace llama {
namespace {

/// Of each byte: itself where Latin-1 prints it, else U+0100 and on.
constexpr auto characters = [] {
  std::array<char16_t, 256> result{};
  char16_t stand_in = 0x100;
  for (char16_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    result[byte] = printable ? byte : stand_in++;
  }
  return result;
}();

}  // namespace

const icu::UnicodeString& allocated(const icu::UnicodeString& text) {
  if (text.isBogus()) throw std::bad_alloc();
  return text;
}

bool failed(UErrorCode status) {
  if (status == U_MEMORY_ALLOCATION_ERROR) throw std::bad_alloc();
  return U_FAILURE(status);
}

std::string reason(UErrorCode status) {
  std::string name = u_errorName(status);
  if (name.starts_with("U_")) name.erase(0, 2);
  for (char& c : name) c = c == '_' ? ' ' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

icu::UnicodeString unicode(std::string_view bytes) {
  constexpr auto longest = std::numeric_limits<std::int32_t>::max();
  if (bytes.size() > longest) {
    throw tokenizer_error(
        fmt::format("text of {} bytes is too long, at most {} can be encoded", bytes.size(), longest));
  }
  icu::UnicodeString text = icu::UnicodeString::fromUTF8({bytes.data(), static_cast<std::int32_t>(bytes.size())});
  allocated(text);
  return text;
}

UChar32 first_character(std::string_view text) { return unicode(text.substr(0, U8_MAX_LENGTH)).char32At(0); }

UChar32 last_character(std::string_view text) {
  const std::size_t size = std::min<std::size_t>(text.size(), U8_MAX_LENGTH);
  const icu::UnicodeString end = unicode(text.substr(text.size() - size));
  return end.char32At(end.length() - 1);
}

bool is_white_space(UChar32 character) { return u_isUWhiteSpace(character); }

std::size_t trailing_space(std::string_view text, bool (*is_space)(UChar32)) {
  std::size_t length = 0;
  while (length < text.size()) {
    const UChar32 character = last_character(text.substr(0, text.size() - length));
    if (!is_space(character)) break;
    length += U8_LENGTH(character);
  }
  return length;
}

std::size_t leading_space(std::string_view text, bool (*is_space)(UChar32)) {
  std::size_t length = 0;
  while (length < text.size()) {
    const UChar32 character = first_character(text.substr(length));
    if (!is_space(character)) break;
    length += U8_LENGTH(character);
  }
  return length;
}

std::string utf8(const icu::UnicodeString& text) {
  std::string result;
  allocated(text).toUTF8String(result);
  if (result.empty() && !text.isEmpty()) throw std::bad_alloc();  // ICU's only sign of it
  return result;
}

icu::UnicodeString byte_characters(const icu::UnicodeString& text) {
  icu::UnicodeString result;
  for (const char byte : utf8(text)) result += characters[static_cast<unsigned char>(byte)];
  return result;
}

std::string bytes_of(const std::string& token) {
  static const auto byte_of = [] {
    std::map<char16_t, char> map;
    for (std::size_t byte = 0; byte < characters.size(); ++byte) map[characters[byte]] = static_cast<char>(byte);
    return map;
  }();
  const icu::UnicodeString text = unicode(token);
  std::string bytes;
  for (std::int32_t i = 0; i < text.length(); ++i) {
    const auto found = byte_of.find(text[i]);
    if (found == byte_of.end()) return token;
    bytes += found->second;
  }
  return bytes;
}

}  // namespace llama
