#pragma once

#include <unicode/regex.h>
#include <unicode/unistr.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

namespace llama {

/// The pattern of a step of a `tokenizer.json`: a regular expression, or a text to find as it is.
class Pattern {
 public:
  enum class Kind { regex, literal };

  /// Throws `tokenizer_error` when `text` is empty or no regular expression.
  Pattern(const icu::UnicodeString& text, Kind kind);

  /// Reads `{"Regex": …}` or `{"String": …}`.
  explicit Pattern(const nlohmann::json& section);

  /// Calls `on_match(start, end)` for the matches in `text`, in order. Throws `tokenizer_error` saying where when a
  /// match takes too many steps or too much memory: the bounds are far above the needs of real patterns.
  void for_each_match(const icu::UnicodeString& text,
                      const std::function<void(std::int32_t start, std::int32_t end)>& on_match) const;

 private:
  std::shared_ptr<const icu::RegexPattern> compiled_;
};

}  // namespace llama
