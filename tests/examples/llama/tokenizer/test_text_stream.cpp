#include <doctest/doctest.h>

#include "support.hpp"

namespace llama::test {
namespace {

TEST_CASE("text comes out in whole characters, however it is cut") {
  const std::string text = "a\u00e9\u4f60\U0001f600z";
  for (std::size_t first = 0; first <= text.size(); ++first) {
    for (std::size_t second = first; second <= text.size(); ++second) {
      TextStream stream;
      std::string result;
      for (const auto& part : {text.substr(0, first), text.substr(first, second - first), text.substr(second)}) {
        const std::string ready = stream.push(part);
        TextStream whole;
        CHECK(whole.push(ready) == ready);
        CHECK(whole.flush().empty());
        result += ready;
      }
      CHECK(result == text);
      CHECK(stream.flush().empty());
    }
  }
}

TEST_CASE("text is not held back longer than needed") {
  TextStream stream;
  CHECK(stream.push("ab\xE4") == "ab");
  CHECK(stream.push("\xBD").empty());
  CHECK(stream.push("\xA0") == "\u4f60");
}

TEST_CASE("bytes that are not UTF-8 become U+FFFD") {
  TextStream stream;
  CHECK(stream.push("a\xFF"
                    "b\x80") == "a\uFFFDb\uFFFD");
  CHECK(stream.push("\xE4\xBD").empty());
  CHECK(stream.push("c") == "\uFFFDc");
  CHECK(stream.push("\xF0\x9F").empty());
  CHECK(stream.flush() == "\uFFFD");
  CHECK(stream.flush().empty());
}

}  // namespace
}  // namespace llama::test
