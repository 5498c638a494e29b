#include "examples/llama/tokenizer/pattern.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "examples/llama/tokenizer/json.hpp"
#include "examples/llama/tokenizer/text.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

namespace llama {
namespace {

/// As in Oniguruma, lines end at "\n" alone, and "^" and "$" are at the ends of each.
constexpr std::uint32_t as_oniguruma = UREGEX_MULTILINE | UREGEX_UNIX_LINES;

/// In Oniguruma (?m) makes "." match newlines, in ICU it is what Oniguruma always does.
void refuse_inline_m(const std::string& pattern) {
  for (std::size_t at = pattern.find("(?"); at != std::string::npos; at = pattern.find("(?", at + 1)) {
    const std::size_t end = pattern.find_first_not_of("-imsx", at + 2);
    const bool flags = end != std::string::npos && (pattern[end] == ':' || pattern[end] == ')');
    if (flags && pattern.find('m', at) < end) {
      throw tokenizer_error(fmt::format("pattern {} has the flag m, which is not supported", shown(pattern)));
    }
  }
}

/// Whether `pattern` has an interval at `at`, such as "{1,3}": how long it is, else 0. `exact` is set for "{3}".
std::size_t interval_at(const std::string& pattern, std::size_t at, bool& exact) {
  const std::size_t end = pattern.find_first_not_of("0123456789,", at + 1);
  if (end == std::string::npos || pattern[end] != '}' || end == at + 1) return 0;
  exact = pattern.find(',', at) > end;
  return end + 1 - at;
}

/// In Oniguruma's syntax of Ruby, which `tokenizers` takes, "+" behind an interval repeats it, and "?" behind "{3}"
/// makes it optional; in ICU the first takes as much as it can and gives nothing back, the second is "{3}".
void refuse_marked_intervals(const std::string& pattern) {
  int brackets = 0;
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    if (pattern[at] == '\\') {
      ++at;
      if (pattern.find_first_of("xpPNoku", at) == at && pattern.substr(at + 1, 1) == "{") {
        at = std::min(pattern.find('}', at), pattern.size());
      }
      continue;
    }
    if (pattern[at] == '[') ++brackets;
    if (pattern[at] == ']' && brackets > 0) --brackets;
    if (pattern[at] != '{' || brackets > 0) continue;
    bool exact = false;
    const std::size_t length = interval_at(pattern, at, exact);
    const char mark = length > 0 && at + length < pattern.size() ? pattern[at + length] : ' ';
    if (mark == '+' || (mark == '?' && exact)) {
      throw tokenizer_error(fmt::format("pattern {} has {} behind an interval at byte {}, which is not supported",
                                        shown(pattern), shown(std::string(1, mark)), at + length));
    }
  }
}

}  // namespace

Pattern::Pattern(const icu::UnicodeString& text, Kind kind) {
  if (text.isEmpty()) throw tokenizer_error("a pattern is empty");
  UErrorCode status = U_ZERO_ERROR;
  if (kind == Kind::regex) {
    refuse_inline_m(utf8(text));
    refuse_marked_intervals(utf8(text));
  }
  compiled_.reset(
      icu::RegexPattern::compile(text, kind == Kind::literal ? std::uint32_t{UREGEX_LITERAL} : as_oniguruma, status));
  if (failed(status)) {
    throw tokenizer_error(fmt::format("pattern {} cannot be compiled: {}", shown(utf8(text)), reason(status)));
  }
}

Pattern::Pattern(const nlohmann::json& section)
    : Pattern(unicode(string_member(section, section.contains("String") ? "String" : "Regex")),
              section.contains("String") ? Kind::literal : Kind::regex) {}

void Pattern::for_each_match(const icu::UnicodeString& text,
                             const std::function<void(std::int32_t start, std::int32_t end)>& on_match) const {
  UErrorCode status = U_ZERO_ERROR;
  std::int32_t reached = 0;
  const auto check = [&] {
    if (!failed(status)) return;
    throw tokenizer_error(fmt::format("the text cannot be matched with a pattern of the tokenizer from byte {} on: {}",
                                      utf8(icu::UnicodeString(text, 0, reached)).size(), reason(status)));
  };
  const std::unique_ptr<icu::RegexMatcher> matcher(compiled_->matcher(status));
  check();
  // In units of 10000 backtracking points, so that a pattern that explodes ends soon.
  matcher->setTimeLimit(1000 + text.length() / 100, status);
  // A run of white space takes some 20 bytes for each of its characters; ICU's own limit of 8 MB ends at 400,000.
  constexpr std::int64_t least = 8'000'000, each = 128, most = std::numeric_limits<std::int32_t>::max();
  matcher->setStackLimit(static_cast<std::int32_t>(std::min(least + each * text.length(), most)), status);
  check();  // before the text: with one, ICU forgets that the matcher itself got no memory, and crashes
  matcher->reset(text);
  while (matcher->find(status)) {
    const std::int32_t start = matcher->start(status);
    reached = matcher->end(status);
    on_match(start, reached);
  }
  check();
}

}  // namespace llama
