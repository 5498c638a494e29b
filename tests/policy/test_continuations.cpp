#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "lazyllm/engine/error.hpp"
#include "lazyllm/policy/continuations.hpp"

using namespace lazyllm;

namespace {

using Token = Continuations::Token;

std::vector<Position> found(const std::vector<Token>& tokens) {
  Continuations continuations;
  const auto positions = continuations.find(0, tokens);
  return {positions.begin(), positions.end()};
}

/// The same by comparing every place with the end, then sorting all.
std::vector<Position> slowly(const std::vector<Token>& tokens) {
  struct Place {
    std::size_t match;
    Position position;
  };
  std::vector<Place> places;
  for (std::size_t next = 1; next < tokens.size(); ++next) {
    std::size_t match = 0;
    while (match < 8 && match < next && tokens[next - 1 - match] == tokens[tokens.size() - 1 - match]) ++match;
    if (match > 0) places.push_back({match, static_cast<Position>(next)});
  }
  std::ranges::sort(places, [](const Place& a, const Place& b) {
    return a.match != b.match ? a.match > b.match : a.position > b.position;
  });
  std::vector<Position> positions;
  for (std::size_t i = 0; i < std::min<std::size_t>(32, places.size()); ++i) positions.push_back(places[i].position);
  return positions;
}

}  // namespace

TEST_CASE("Continuations: the longest match first, of equal ones the latest") {
  CHECK(found({5, 1, 2, 9, 2, 4, 1, 2}) == std::vector<Position>{3, 5});  // "1 2" before "2"
  CHECK(found({5, 1, 2, 9, 2, 4, 1, 2, 7, 2}) == std::vector<Position>{8, 5, 3});
  CHECK(found({}).empty());
  CHECK(found({4}).empty());
  CHECK(found({4, 5}).empty());
  CHECK(found({4, 4, 4}) == std::vector<Position>{2, 1});
}

TEST_CASE("Continuations: as by comparing every place") {
  std::mt19937 random(1);
  for (int run = 0; run < 300; ++run) {
    std::vector<Token> tokens(random() % 120);
    for (Token& token : tokens) token = static_cast<Token>(random() % 3);
    CHECK(found(tokens) == slowly(tokens));
  }
}

TEST_CASE("Continuations: tokens that are forgotten are not found") {
  Continuations continuations;
  CHECK(continuations.find(0, std::vector<Token>{1, 2, 3, 1}).size() == 1);
  CHECK(continuations.find(3, {}).empty());
  CHECK(continuations.find(3, std::vector<Token>{2}).front() == 2);
  CHECK_THROWS_WITH_AS(continuations.find(5, {}),
                       doctest::Contains("length 5 is out of range 0 to 4, the tokens seen so far"), invalid_argument);
  CHECK_THROWS_AS(continuations.find(-1, {}), invalid_argument);
  CHECK(continuations.find(4, std::vector<Token>{9, 1, 2}).front() == 2);     // a refused call has changed nothing
  CHECK(continuations.find(0, std::vector<Token>{6, 7, 8, 6}).front() == 1);  // whatever there was
}
