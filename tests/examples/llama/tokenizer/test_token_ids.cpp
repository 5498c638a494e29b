#include <doctest/doctest.h>

#include "support.hpp"

namespace llama::test {
namespace {

std::vector<TokenId> ids_of(const std::string& content) {
  const TemporaryFolder folder;
  return read_token_ids(folder.write("ids.txt", content), 100);
}

TEST_CASE("token ids are read from words, lists and JSON") {
  const std::vector<TokenId> expected{1, 0, 99, 7};
  CHECK(ids_of("1 0 99 7") == expected);
  CHECK(ids_of("1,0, 99\n\t7\r\n") == expected);
  CHECK(ids_of(" [1, 0,\n99, 7]\n") == expected);
  CHECK(ids_of("").empty());
  CHECK(ids_of("[]").empty());
}

TEST_CASE("a wrong token id is named with its place") {
  const auto refuses = [](const std::string& content, const char* message) {
    CAPTURE(content);
    CHECK_THROWS_WITH_AS(ids_of(content), doctest::Contains(message), tokenizer_error);
  };
  refuses("1\n2 100", "line 2: \"100\" is not a token id in [0, 100)");
  refuses("1\n\n-1", "line 3: \"-1\"");
  refuses("1 2a", "line 1: \"2a\"");
  refuses("99999999999999999999", "99999999999999999999");
  refuses("[1, 2, 100]", "entry 2: \"100\"");
  refuses("[1, -1]", "entry 1: \"-1\"");
  refuses("1 -0", "\"-0\"");
  refuses("[1, -0]", "entry 1: \"-0\"");
  refuses("[1, 2.5]", "2.5");
  refuses("[\"1\"]", "entry 0");
  refuses("[1, [2]]", "[2]");
  refuses("[1, 2", "ids.txt");
  refuses(std::string("[3,4]\0,5,6]", 11), "ids.txt: not valid JSON: a zero byte at line 1, column 6");
  refuses(std::string("3 4\0 5", 7), "line 1");
  refuses(std::string(200000, '['), "nested deeper");
  CHECK_THROWS_AS(read_token_ids("missing.txt", 100), file_error);
  CHECK_THROWS_AS(read_token_ids("missing.txt", 0), std::invalid_argument);
}

}  // namespace
}  // namespace llama::test
