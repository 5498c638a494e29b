#pragma once

#include <unicode/unistr.h>

#include <string>
#include <string_view>

namespace llama {

/// `text`, unless it is bogus: ICU's only sign of a failed allocation, and it reads as empty. Throws `std::bad_alloc`
/// then.
const icu::UnicodeString& allocated(const icu::UnicodeString& text);

/// Whether `status` is a failure. Throws `std::bad_alloc` for a failed allocation.
bool failed(UErrorCode status);

/// ICU's name of `status` as words: "regex mismatched paren".
std::string reason(UErrorCode status);

/// Text of UTF-8 `bytes`; what is not UTF-8 becomes U+FFFD. Throws `tokenizer_error` where ICU cannot count so many.
icu::UnicodeString unicode(std::string_view bytes);

std::string utf8(const icu::UnicodeString& text);

/// The character at one end of UTF-8 `text`, which is not empty; U+FFFD where it is not UTF-8.
UChar32 first_character(std::string_view text);
UChar32 last_character(std::string_view text);

/// Unicode's white space.
bool is_white_space(UChar32 character);

/// Length in bytes of the white space at one end of UTF-8 `text`.
std::size_t trailing_space(std::string_view text, bool (*is_space)(UChar32) = is_white_space);
std::size_t leading_space(std::string_view text, bool (*is_space)(UChar32) = is_white_space);

/// GPT-2's stand-ins for the bytes of `text`, one printable character each: what a byte-level vocabulary is written in.
icu::UnicodeString byte_characters(const icu::UnicodeString& text);

/// The bytes that the characters of `token` stand for; `token` itself where one of them stands for none.
std::string bytes_of(const std::string& token);

}  // namespace llama
