#pragma once

#include <unicode/unistr.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

namespace llama {

/// Section "normalizer" of a `tokenizer.json`: changes a text before it is cut.
class Normalizer {
 public:
  /// NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, Sequence, or null. Throws
  /// `tokenizer_error` naming anything else.
  explicit Normalizer(const nlohmann::json& section);

  /// `text` as the steps leave it. Throws `tokenizer_error` when it gets too long.
  icu::UnicodeString operator()(icu::UnicodeString text) const;

 private:
  void add(const nlohmann::json& section);
  void add_replace(const nlohmann::json& section);

  std::vector<std::function<void(icu::UnicodeString&)>> steps_;
};

}  // namespace llama
