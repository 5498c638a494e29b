#pragma once

#include <unicode/unistr.h>

#include <string>
#include <string_view>

namespace llama {

/// Text of UTF-8 `bytes`; what is not UTF-8 becomes U+FFFD. Throws `tokenizer_error` where ICU cannot count so many.
icu::UnicodeString unicode(std::string_view bytes);

std::string utf8(const icu::UnicodeString& text);

/// GPT-2's stand-ins for the bytes of `text`, one printable character each: what a byte-level vocabulary is written in.
icu::UnicodeString byte_characters(const icu::UnicodeString& text);

/// The bytes that the characters of `token` stand for; `token` itself where one of them stands for none.
std::string bytes_of(const std::string& token);

}  // namespace llama
