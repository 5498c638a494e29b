#include "examples/llama/tokenizer/pre_tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "examples/llama/tokenizer/json.hpp"
#include "examples/llama/tokenizer/pattern.hpp"
#include "examples/llama/tokenizer/text.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

namespace llama {
namespace {

using icu::UnicodeString;
using nlohmann::json;

// The patterns that stand behind the names of pre-tokenizers.
constexpr const char* gpt2_pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* punctuation_pattern = R"([\p{P}$+<=>\^`|~])";
constexpr const char* word_pattern = R"(\w+|[^\w\s]+)";

Pattern regex(const char* pattern) { return {unicode(pattern), Pattern::Kind::regex}; }

/// A part of a text, from one end of a match to the next.
struct Span {
  std::int32_t start, end;
  bool matches;
};

/// All of `text`, as what matches and what lies between.
std::vector<Span> spans(const Pattern& pattern, const UnicodeString& text) {
  std::vector<Span> result;
  std::int32_t end = 0;
  pattern.for_each_match(text, [&](std::int32_t start, std::int32_t match_end) {
    if (start > end) result.push_back({end, start, false});
    if (match_end > start) result.push_back({start, match_end, true});
    end = match_end;
  });
  if (end < text.length()) result.push_back({end, text.length(), false});
  return result;
}

/// Joins each span with the one before it where `joins(before, span)`.
template <class Joins>
std::vector<Span> joined(const std::vector<Span>& spans, const Joins& joins) {
  std::vector<Span> result;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (i != 0 && joins(spans[i - 1], spans[i])) {
      result.back().end = spans[i].end;
    } else {
      result.push_back(spans[i]);
    }
  }
  return result;
}

/// Which spans become pieces, for each behavior of a Split.
std::vector<Span> pieces_of(std::vector<Span> spans, const std::string& behavior) {
  if (behavior == "Removed") {
    std::erase_if(spans, [](const Span& span) { return span.matches; });
    return spans;
  }
  if (behavior == "MergedWithPrevious") {
    return joined(spans, [](const Span& before, const Span& span) { return !before.matches && span.matches; });
  }
  if (behavior == "MergedWithNext") {
    return joined(spans, [](const Span& before, const Span& span) { return before.matches && !span.matches; });
  }
  if (behavior == "Contiguous") {
    return joined(spans, [](const Span& before, const Span& span) { return before.matches == span.matches; });
  }
  return spans;
}

}  // namespace

PreTokenizer::PreTokenizer(const json& section) {
  if (!section.is_null()) add(section);
}

void PreTokenizer::add(const json& section) {
  const std::string type = string_member(section, "type");
  if (type == "Sequence") {
    for (const json& part : member(section, "pretokenizers")) add(part);
  } else if (type == "ByteLevel") {
    add_byte_level(section);
  } else if (type == "Split") {
    add_split(Pattern(member(section, "pattern")), string_member(section, "behavior"),
              member_or(section, "invert", false));
  } else if (type == "Digits") {
    add_split(regex(member_or(section, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)"), "Isolated");
  } else if (type == "Punctuation") {
    add_split(regex(punctuation_pattern), member_or<std::string>(section, "behavior", "Isolated"));
  } else if (type == "Whitespace") {
    add_split(regex(word_pattern), "Removed", true);
  } else if (type == "WhitespaceSplit") {
    add_split(regex(R"(\s)"), "Removed");
  } else if (type == "CharDelimiterSplit") {
    add_split({unicode(string_member(section, "delimiter")), Pattern::Kind::literal}, "Removed");
  } else if (type == "Metaspace") {
    add_metaspace(section);
  } else {
    throw tokenizer_error(fmt::format(
        "pre_tokenizer {} is not supported (ByteLevel, CharDelimiterSplit, Digits, Metaspace, Punctuation, Split, "
        "Whitespace, WhitespaceSplit, Sequence are); a tokenizer.model beside it would be",
        type));
  }
}

void PreTokenizer::add_split(const Pattern& pattern, const std::string& behavior, bool invert) {
  constexpr std::string_view behaviors[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                            "Contiguous"};
  if (std::ranges::find(behaviors, behavior) == std::end(behaviors)) {
    throw tokenizer_error(
        fmt::format("pre_tokenizer with the unknown behavior {} (known: {})", behavior, fmt::join(behaviors, ", ")));
  }
  steps_.emplace_back([=](const UnicodeString& piece, bool, Pieces& pieces) {
    std::vector<Span> cut = spans(pattern, piece);
    for (Span& span : cut) span.matches = span.matches != invert;
    for (const Span& span : pieces_of(std::move(cut), behavior)) {
      pieces.emplace_back(piece, span.start, span.end - span.start);
    }
  });
}

void PreTokenizer::add_byte_level(const json& section) {
  byte_level_ = true;
  if (member_or(section, "add_prefix_space", true)) {
    steps_.emplace_back([](const UnicodeString& piece, bool, Pieces& pieces) {
      pieces.push_back(piece.startsWith(u' ') ? piece : u' ' + piece);
    });
  }
  if (member_or(section, "use_regex", true)) add_split(regex(gpt2_pattern), "Isolated");
  steps_.emplace_back(
      [](const UnicodeString& piece, bool, Pieces& pieces) { pieces.push_back(byte_characters(piece)); });
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
  steps_.emplace_back([=](const UnicodeString& piece, bool starts_text, Pieces& pieces) {
    UnicodeString text = piece;
    text.findAndReplace(u' ', mark);
    const bool prepends = scheme == "always" || (scheme == "first" && starts_text);
    if (prepends && !text.startsWith(mark)) text.insert(0, mark);
    pieces.push_back(std::move(text));
  });
  if (member_or(section, "split", true)) add_split({mark, Pattern::Kind::literal}, "MergedWithNext");
}

std::vector<UnicodeString> PreTokenizer::split(const UnicodeString& text, bool starts_text) const {
  Pieces pieces{allocated(text)};
  for (const Step& step : steps_) {
    Pieces cut;
    for (std::size_t i = 0; i < pieces.size(); ++i) step(pieces[i], starts_text && i == 0, cut);
    for (const UnicodeString& piece : cut) allocated(piece);
    pieces = std::move(cut);
  }
  return pieces;
}

}  // namespace llama
