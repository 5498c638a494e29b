#include "examples/llama/tokenizer/pattern.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "examples/llama/tokenizer/tokenizer.hpp"

namespace llama {
namespace {

using Matches = std::vector<std::pair<int, int>>;

Matches matches(const char* pattern, const char* text) {
  Matches found;
  Pattern(icu::UnicodeString::fromUTF8(pattern), Pattern::Kind::regex)
      .for_each_match(icu::UnicodeString::fromUTF8(text), [&](int start, int end) { found.emplace_back(start, end); });
  return found;
}

TEST_CASE("patterns: lines end as in Oniguruma, by which the package tokenizers splits") {
  CHECK(matches("\\s+$", "foo  \nbar  \n\nbaz  ") == Matches{{3, 5}, {9, 12}, {16, 18}});
  CHECK(matches("^ ", " foo\n bar\r z") == Matches{{0, 1}, {5, 6}});
  CHECK(matches("b.c", "b\rc b\nc b\u2028c") == Matches{{0, 3}, {8, 11}});
}

TEST_CASE("patterns: the inline flag m, which means something else in Oniguruma, is an error") {
  for (const char* pattern : {"(?m:a.b)", "(?m)a.b", "x(?i-m:a)", "(?im)a"}) {
    CAPTURE(pattern);
    CHECK_THROWS_WITH_AS(matches(pattern, "a"), doctest::Contains("has the flag m"), tokenizer_error);
  }
  for (const char* pattern : {"(?i:'m|a)", "(?:m)", "a(?=m)", "(?!m)a"}) CHECK_NOTHROW(matches(pattern, "a"));
}

TEST_CASE("patterns: + and ? behind an interval, which mean something else in Oniguruma, are errors") {
  for (const char* pattern : {"\\p{N}{1,3}+", "a{2}?", "a{2}+", "(?:ab){,3}+", "[{]a{1,}+"}) {
    CAPTURE(pattern);
    CHECK_THROWS_WITH_AS(matches(pattern, "a"), doctest::Contains("behind an interval at byte"), tokenizer_error);
  }
  CHECK_THROWS_WITH_AS(matches("\\p{N}{1,3}+", "a"), doctest::Contains("at byte 10"), tokenizer_error);
  for (const char* pattern :
       {"\\p{N}{1,3}", "a{1,3}?b", "\\x{41}+", "\\p{L}+", "[a{2}+]", "(?:a{2})+", "\\{2\\}+", "a][a{2}+]"}) {
    CAPTURE(pattern);
    CHECK_NOTHROW(matches(pattern, "a"));
  }
  CHECK_THROWS_AS(matches("a\\p{L", "a"), tokenizer_error);  // the search for a mark ends with the pattern
}

}  // namespace
}  // namespace llama
