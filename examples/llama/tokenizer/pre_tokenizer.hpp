#pragma once

#include <unicode/unistr.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace llama {

class Pattern;

/// Section "pre_tokenizer" of a `tokenizer.json`: cuts text into the pieces that tokens never cross.
class PreTokenizer {
 public:
  /// ByteLevel, CharDelimiterSplit, Digits, Metaspace, Punctuation, Split, Whitespace, WhitespaceSplit, Sequence, or
  /// null. Throws `tokenizer_error` naming anything else.
  explicit PreTokenizer(const nlohmann::json& section);

  /// None of the pieces is empty. `starts_text`: nothing, not even a special token, stands before `text`.
  std::vector<icu::UnicodeString> split(const icu::UnicodeString& text, bool starts_text) const;

  /// Whether pieces are written in GPT-2's characters for bytes.
  bool byte_level() const { return byte_level_; }

 private:
  using Pieces = std::vector<icu::UnicodeString>;
  using Step = std::function<void(const icu::UnicodeString& piece, bool starts_text, Pieces& pieces)>;

  void add(const nlohmann::json& section);
  void add_split(const Pattern& pattern, const std::string& behavior, bool invert = false);
  void add_byte_level(const nlohmann::json& section);
  void add_metaspace(const nlohmann::json& section);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace llama
