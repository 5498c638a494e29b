#include <doctest/doctest.h>

#include <utility>

#include "examples/llama/files/printable.hpp"

using namespace llama;

TEST_CASE("printable: no control character and no stray byte is left") {
  CHECK(printable("plain, \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80") == "plain, \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  CHECK(printable("a\x1b[2Jb\rc\x7f") == "a\\x1b[2Jb\\x0dc\\x7f");
  CHECK(printable("\xc2\x9b"
                  "1m\xc2\xa0") == "\\xc2\\x9b1m\xc2\xa0");  // a control character beyond ASCII
  CHECK(printable("\xff\xc3"
                  "a\x80\xe2\x82") == "\\xff\\xc3a\\x80\\xe2\\x82");
  CHECK(printable("1\n2\t3") == "1\\x0a2\\x093");
  CHECK(printable("1\n2\t3\x1b", Controls::lines) == "1\n2\t3\\x1b");
}

TEST_CASE("printable: what UTF-8 forbids is stray bytes") {
  for (const auto& stray : {
           std::pair("\xc0\x9b", "\\xc0\\x9b"),                       // overlong
           {"\xc1\xbf", "\\xc1\\xbf"},                                //
           {"\xe0\x80\x9b", "\\xe0\\x80\\x9b"},                       //
           {"\xe0\x9f\xbf", "\\xe0\\x9f\\xbf"},                       //
           {"\xf0\x80\x80\x9b", "\\xf0\\x80\\x80\\x9b"},              //
           {"\xf0\x8f\xbf\xbf", "\\xf0\\x8f\\xbf\\xbf"},              //
           {"\xed\xa0\x80", "\\xed\\xa0\\x80"},                       // surrogates
           {"\xed\xbf\xbf", "\\xed\\xbf\\xbf"},                       //
           {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},              // above U+10FFFF
           {"\xf5\x80\x80\x80", "\\xf5\\x80\\x80\\x80"},              //
           {"\xe0\xa0\x80\xed\x9f\xbf", "\xe0\xa0\x80\xed\x9f\xbf"},  // the first and last that are allowed
           {"\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"},
       }) {
    CAPTURE(stray.second);
    CHECK(printable(stray.first) == stray.second);
  }
}
