#include <doctest/doctest.h>

#include <stdexcept>
#include <type_traits>

#include "lazyllm/engine/error.hpp"

using namespace lazyllm;

static_assert(std::is_base_of_v<std::runtime_error, error>);
static_assert(std::is_base_of_v<error, invalid_argument> && std::is_base_of_v<error, logic_error> &&
              std::is_base_of_v<error, cuda_error>);

TEST_CASE("error: the message has all parts, and the type is the one that was asked for") {
  CHECK_THROWS_WITH_AS(lazyllm::detail::fail("width ", 3, " of ", 2.5), "lazyllm: width 3 of 2.5", invalid_argument);
  CHECK_THROWS_WITH_AS(lazyllm::detail::fail<logic_error>("late"), "lazyllm: late", logic_error);
}

TEST_CASE("error: numbers have all the digits that matter") {
  CHECK_THROWS_WITH(lazyllm::detail::fail("keep ", 1.0000001), "lazyllm: keep 1.0000001");
  CHECK_THROWS_WITH(lazyllm::detail::fail("share ", 1e-300), "lazyllm: share 1e-300");
  CHECK_THROWS_WITH(lazyllm::detail::fail("share ", 0.7F, " of ", 3, ' ', "tokens"), "lazyllm: share 0.7 of 3 tokens");
}
