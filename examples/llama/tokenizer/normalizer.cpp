#include "examples/llama/tokenizer/normalizer.hpp"

#include <fmt/format.h>
#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>

#include <map>

#include "examples/llama/tokenizer/json.hpp"
#include "examples/llama/tokenizer/pattern.hpp"
#include "examples/llama/tokenizer/text.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

namespace llama {
namespace {

using icu::UnicodeString;
using nlohmann::json;

void check(UErrorCode status, std::string_view what) {
  if (failed(status)) throw tokenizer_error(fmt::format("{}: {}", what, reason(status)));
}

using FormInstance = const icu::Normalizer2* (*)(UErrorCode&);

/// ICU's functions for the Unicode normalization forms.
const std::map<std::string, FormInstance>& forms() {
  static const std::map<std::string, FormInstance> map{{"NFC", icu::Normalizer2::getNFCInstance},
                                                       {"NFD", icu::Normalizer2::getNFDInstance},
                                                       {"NFKC", icu::Normalizer2::getNFKCInstance},
                                                       {"NFKD", icu::Normalizer2::getNFKDInstance}};
  return map;
}

/// Replaces each character by `change(character)`.
template <class Change>
void change_characters(UnicodeString& text, const Change& change) {
  UnicodeString result;
  for (std::int32_t i = 0; i < text.length(); i = text.moveIndex32(i, 1)) result += change(text.char32At(i));
  text = result;
}

UnicodeString without_accents(UChar32 character) {
  return (U_GET_GC_MASK(character) & U_GC_M_MASK) != 0 ? UnicodeString() : UnicodeString(character);
}

void strip(UnicodeString& text, bool left, bool right) {
  std::int32_t start = 0, end = text.length();
  while (left && start < end && u_isUWhiteSpace(text.char32At(start))) start = text.moveIndex32(start, 1);
  while (right && start < end && u_isUWhiteSpace(text.char32At(end - 1))) end = text.moveIndex32(end, -1);
  text = UnicodeString(text, start, end - start);
}

}  // namespace

Normalizer::Normalizer(const json& section) {
  if (!section.is_null()) add(section);
}

void Normalizer::add(const json& section) {
  const std::string type = string_member(section, "type");
  if (type == "Sequence") {
    for (const json& part : member(section, "normalizers")) add(part);
  } else if (const auto form = forms().find(type); form != forms().end()) {
    UErrorCode status = U_ZERO_ERROR;
    const icu::Normalizer2* normalizer = form->second(status);
    check(status, "ICU lacks data for " + type);
    steps_.emplace_back([normalizer, type](UnicodeString& text) {
      UErrorCode failure = U_ZERO_ERROR;
      text = normalizer->normalize(text, failure);
      check(failure, "cannot bring the text into " + type);
    });
  } else if (type == "Lowercase") {
    // Character by character: a capital sigma at the end of a word is no special case.
    steps_.emplace_back([](UnicodeString& text) {
      change_characters(text, [](UChar32 c) { return UnicodeString(c).toLower(icu::Locale::getRoot()); });
    });
  } else if (type == "StripAccents") {
    steps_.emplace_back([](UnicodeString& text) { change_characters(text, without_accents); });
  } else if (type == "Strip") {
    const bool left = member_or(section, "strip_left", true), right = member_or(section, "strip_right", true);
    steps_.emplace_back([left, right](UnicodeString& text) { strip(text, left, right); });
  } else if (type == "Prepend") {
    steps_.emplace_back([prefix = unicode(string_member(section, "prepend"))](UnicodeString& text) {
      if (!text.isEmpty()) text.insert(0, prefix);
    });
  } else if (type == "Replace") {
    add_replace(section);
  } else {
    throw tokenizer_error(fmt::format(
        "normalizer {} is not supported (NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, "
        "Sequence are)",
        type));
  }
}

void Normalizer::add_replace(const json& section) {
  steps_.emplace_back([pattern = Pattern(member(section, "pattern")), name = shown(member(section, "pattern")),
                       content = unicode(string_member(section, "content"))](UnicodeString& text) {
    UnicodeString result;
    std::int32_t copied = 0;
    pattern.for_each_match(text, [&](std::int32_t start, std::int32_t end) {
      // At the start of a text the package tokenizers puts the content there twice.
      if (start == end)
        throw tokenizer_error(
            fmt::format("the pattern {} of the normalizer Replace matches an empty part of the text, which is not "
                        "supported",
                        name));
      result.append(text, copied, start - copied).append(content);
      copied = end;
    });
    text = result.append(text, copied, text.length() - copied);
  });
}

UnicodeString Normalizer::operator()(UnicodeString text) const {
  allocated(text);
  for (const auto& step : steps_) {
    step(text);
    allocated(text);
  }
  return text;
}

}  // namespace llama
