#include "examples/llama/tokenizer/pre_tokenizer.hpp"

#include <fmt/format.h>
#include <unicode/normalizer2.h>
#include <unicode/regex.h>

#include "examples/llama/tokenizer/json.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

namespace llama {
namespace {

using icu::UnicodeString;
using nlohmann::json;

constexpr const char* gpt2_pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

void check(UErrorCode status, std::string_view what) {
  if (U_FAILURE(status)) throw tokenizer_error(fmt::format("{}: {}", what, u_errorName(status)));
}

UnicodeString unicode(const std::string& text) { return UnicodeString::fromUTF8(text); }

/// Cuts `text` at both ends of each match; what lies between matches is a piece too.
void split_at_matches(const icu::RegexPattern& pattern, const UnicodeString& text, std::vector<UnicodeString>& pieces) {
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<icu::RegexMatcher> matcher(pattern.matcher(text, status));
  check(status, "cannot match the pre_tokenizer's pattern");
  // In units of 10000 backtracking points: far above the need of real patterns, but one that explodes ends soon.
  matcher->setTimeLimit(1000 + text.length() / 100, status);
  std::int32_t end = 0;
  const auto add_until = [&](std::int32_t limit) {
    if (limit > end) pieces.emplace_back(text, end, limit - end);
    end = limit;
  };
  while (matcher->find(status)) {
    add_until(matcher->start(status));
    add_until(matcher->end(status));
  }
  check(status, "cannot match the pre_tokenizer's pattern");
  add_until(text.length());
}

}  // namespace

std::vector<NormalizerStep> read_normalizer(const json& section) {
  if (section.is_null()) return {};
  const std::string type = string_member(section, "type");
  if (type == "Sequence") {
    std::vector<NormalizerStep> steps;
    for (const json& part : section.at("normalizers")) {
      for (NormalizerStep& step : read_normalizer(part)) steps.push_back(std::move(step));
    }
    return steps;
  }
  if (type == "NFC") {
    UErrorCode status = U_ZERO_ERROR;
    const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(status);
    check(status, "ICU has no NFC data");
    return {[nfc](UnicodeString& text) {
      UErrorCode failure = U_ZERO_ERROR;
      text = nfc->normalize(text, failure);
      check(failure, "cannot bring the text into NFC");
    }};
  }
  if (type == "Prepend") {
    return {[prefix = unicode(string_member(section, "prepend"))](UnicodeString& text) {
      if (!text.isEmpty()) text.insert(0, prefix);
    }};
  }
  if (type == "Replace" && section.at("pattern").contains("String")) {
    const UnicodeString pattern = unicode(string_member(section.at("pattern"), "String"));
    if (pattern.isEmpty()) throw tokenizer_error("normalizer Replace has an empty pattern");
    return {[pattern, content = unicode(string_member(section, "content"))](UnicodeString& text) {
      text.findAndReplace(pattern, content);
    }};
  }
  throw tokenizer_error(
      fmt::format("normalizer {} is not supported (NFC, Prepend, Replace of a String, Sequence are)", type));
}

PreTokenizer::PreTokenizer(const json& section) {
  if (!section.is_null()) add(section);
}

void PreTokenizer::add(const json& section) {
  const std::string type = string_member(section, "type");
  if (type == "Sequence") {
    for (const json& part : section.at("pretokenizers")) add(part);
    return;
  }
  if (byte_level_) throw tokenizer_error(fmt::format("pre_tokenizer {} after ByteLevel is not supported", type));
  if (type == "ByteLevel") {
    byte_level_ = true;
    if (member_or(section, "add_prefix_space", true)) {
      steps_.emplace_back([](const UnicodeString& piece, bool, Pieces& pieces) {
        pieces.push_back(piece.startsWith(u' ') ? piece : u' ' + piece);
      });
    }
    if (member_or(section, "use_regex", true)) add_split(gpt2_pattern, false);
  } else if (type == "Split") {
    const std::string behavior = string_member(section, "behavior");
    if (behavior != "Isolated") {
      throw tokenizer_error(
          fmt::format("pre_tokenizer Split with behavior {} is not supported (Isolated is)", behavior));
    }
    const json& pattern = section.at("pattern");
    const bool literal = pattern.contains("String");
    add_split(unicode(string_member(pattern, literal ? "String" : "Regex")), literal);
  } else if (type == "Metaspace") {
    add_metaspace(section);
  } else {
    throw tokenizer_error(fmt::format(
        "pre_tokenizer {} is not supported (Split, ByteLevel, Metaspace, Sequence are); a tokenizer.model beside it "
        "would be",
        type));
  }
}

void PreTokenizer::add_split(const UnicodeString& pattern, bool literal) {
  UErrorCode status = U_ZERO_ERROR;
  const std::shared_ptr<const icu::RegexPattern> compiled(
      icu::RegexPattern::compile(pattern, literal ? UREGEX_LITERAL : 0, status));
  std::string text;
  check(status, "pre_tokenizer pattern \"" + pattern.toUTF8String(text) + "\" cannot be compiled");
  steps_.emplace_back(
      [compiled](const UnicodeString& piece, bool, Pieces& pieces) { split_at_matches(*compiled, piece, pieces); });
}

void PreTokenizer::add_metaspace(const json& section) {
  const UnicodeString mark = unicode(string_member(section, "replacement"));
  if (mark.isEmpty()) throw tokenizer_error("pre_tokenizer Metaspace has an empty replacement");
  // Files from before prepend_scheme existed have add_prefix_space instead.
  const bool prefix = member_or(section, "add_prefix_space", true);
  const auto scheme = member_or<std::string>(section, "prepend_scheme", prefix ? "always" : "never");
  if (scheme != "first" && scheme != "always" && scheme != "never") {
    throw tokenizer_error(fmt::format("pre_tokenizer Metaspace has prepend_scheme {} (first, always, never)", scheme));
  }
  const bool splits = member_or(section, "split", true);
  steps_.emplace_back([=](const UnicodeString& piece, bool starts_text, Pieces& pieces) {
    UnicodeString text = piece;
    text.findAndReplace(u' ', mark);
    const bool prepends = scheme == "always" || (scheme == "first" && starts_text);
    if (prepends && !text.startsWith(mark)) text.insert(0, mark);
    std::int32_t start = 0;
    while (splits && start < text.length()) {
      const std::int32_t next = text.indexOf(mark, start + 1);
      if (next < 0) break;
      pieces.emplace_back(text, start, next - start);
      start = next;
    }
    pieces.emplace_back(text, start);
  });
}

std::vector<UnicodeString> PreTokenizer::split(const UnicodeString& text, bool starts_text) const {
  Pieces pieces{text};
  for (const Step& step : steps_) {
    Pieces cut;
    for (std::size_t i = 0; i < pieces.size(); ++i) step(pieces[i], starts_text && i == 0, cut);
    pieces = std::move(cut);
  }
  return pieces;
}

}  // namespace llama
