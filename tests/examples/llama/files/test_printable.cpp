#include <doctest/doctest.h>

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
