#pragma once

#include <unicode/unistr.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

namespace llama {

/// One step of a `tokenizer.json` normalizer: changes the text in place.
using NormalizerStep = std::function<void(icu::UnicodeString&)>;

/// Steps of section "normalizer" (may be null): NFC, Prepend, Replace of a string, Sequence. Throws `tokenizer_error`
/// naming any other.
std::vector<NormalizerStep> read_normalizer(const nlohmann::json& section);

/// Section "pre_tokenizer" of a `tokenizer.json`: cuts text into the pieces that tokens never cross.
class PreTokenizer {
 public:
  /// Split (Isolated), ByteLevel, Metaspace, Sequence, or null. Throws `tokenizer_error` naming anything else.
  explicit PreTokenizer(const nlohmann::json& section);

  /// `starts_text`: nothing, not even a special token, stands before `text`.
  std::vector<icu::UnicodeString> split(const icu::UnicodeString& text, bool starts_text) const;

  /// Whether tokens are made of bytes; of characters otherwise.
  bool byte_level() const { return byte_level_; }

 private:
  using Pieces = std::vector<icu::UnicodeString>;
  using Step = std::function<void(const icu::UnicodeString& piece, bool starts_text, Pieces& pieces)>;

  void add(const nlohmann::json& section);
  void add_split(const icu::UnicodeString& pattern, bool literal);
  void add_metaspace(const nlohmann::json& section);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace llama
