#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "examples/llama/program/interleaved.hpp"

using namespace llama;

TEST_CASE("interleaved: turn by turn, the results of each run in order") {
  std::string order;
  int calls = 0;
  const auto letter = [&] {
    order += 'a';
    return std::string(1, static_cast<char>('p' + calls));
  };
  const auto number = [&] {
    order += 'b';
    return ++calls;
  };
  const auto [letters, numbers] = interleaved(3, letter, number);
  CHECK(order == "ababab");
  CHECK(letters == std::vector<std::string>{"p", "q", "r"});
  CHECK(numbers == std::vector<int>{1, 2, 3});
  CHECK(std::get<0>(interleaved(0, number)).empty());
}
