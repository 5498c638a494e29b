#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "examples/llama/program/cut_middle.hpp"
#include "tests/examples/llama/checkpoint/support.hpp"

using namespace llama;
using testing::check_rejected;

namespace {

using TokenList = std::vector<TokenId>;

/// 100, 101, …
TokenList numbered(Index count) {
  TokenList tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 100);
  return tokens;
}

}  // namespace

TEST_CASE("cut_middle keeps the first and the last half exactly") {
  CHECK(cut_middle(numbered(10), 10) == numbered(10));
  CHECK(cut_middle(numbered(10), 11) == numbered(10));
  CHECK(cut_middle(numbered(10), 9) == TokenList{100, 101, 102, 103, 106, 107, 108, 109});
  CHECK(cut_middle(numbered(10), 8) == TokenList{100, 101, 102, 103, 106, 107, 108, 109});
  CHECK(cut_middle(numbered(10), 2) == TokenList{100, 109});
  CHECK(cut_middle(numbered(10), 3) == TokenList{100, 109});
  CHECK(cut_middle({}, 2).empty());
  check_rejected<std::invalid_argument>([] { cut_middle(numbered(3), 1); }, {"at most 1", "at least 2"});
}
