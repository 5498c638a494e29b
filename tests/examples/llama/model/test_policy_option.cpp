#include <doctest/doctest.h>

#include <initializer_list>

#include "examples/llama/model/policy_option.hpp"
#include "lazyllm/error.hpp"

using namespace lazyllm;
using namespace lazyllm::llama;
using Kind = Selection::Kind;

namespace {

/// Of the policy `text` for a model of 10 layers with 100 active tokens, in the sequence's step number `steps`.
Selection select(const char* text, Index layers_run, Index steps = 0) {
  return parse_policy(text, 10)(
      {.layers_run = layers_run, .layers = 10, .active = 100, .tokens = 120, .new_tokens = 120, .steps = steps});
}

}  // namespace

TEST_CASE("dense prunes nowhere, paper keeps 70 % after each 30 % of the layers") {
  for (Index layer = 1; layer < 10; ++layer) {
    CHECK(select("dense", layer).kind == Kind::all);
    const bool prunes = layer % 3 == 0;
    CHECK(select("paper", layer).kind == (prunes ? Kind::count : Kind::all));
    if (prunes) CHECK(select("paper", layer).count == 70);
  }
}

TEST_CASE("a list prunes after its layers, by count or by share of the attention") {
  CHECK(select("3:0.5,7:0.251", 3).count == 50);
  CHECK(select("3:0.5,7:0.251", 7).count == 26);
  CHECK(select("3:0.5,7:0.251", 4).kind == Kind::all);
  CHECK(select("mass@3:0.5,7:0.25", 7).kind == Kind::mass);
  CHECK(select("mass@3:0.5,7:0.25", 7).mass == 0.25);
  CHECK(select("mass@3:0.5,7:0.25", 4).kind == Kind::all);
}

TEST_CASE("static prunes in the first step only and revives nothing later") {
  CHECK(select("static@3:0.5", 3).count == 50);
  CHECK(select("static@3:0.5", 4).kind == Kind::all);
  CHECK(select("static@3:0.5", 3, 1).kind == Kind::unparked);
  CHECK(select("static@3:0.5", 4, 1).kind == Kind::unparked);
}

TEST_CASE("random ranks by its seed") {
  CHECK(select("random=0@3:0.5", 3).random_seed == 0U);
  CHECK(select("random=18446744073709551615@3:0.5", 3).random_seed == 18446744073709551615U);
  CHECK(select("random=4@3:0.5", 3).count == 50);
  CHECK_FALSE(select("3:0.5", 3).random_seed);
}

TEST_CASE("anything else is an error that shows the text") {
  for (const char* text : {"",
                           "Paper",
                           "dense ",
                           "3",
                           "3:",
                           ":0.5",
                           "3:0.5,",
                           "3:0.5;4:0.5",
                           "3:x",
                           "3.5:0.5",
                           "@3:0.5",
                           "mass@",
                           "mass",
                           "mass=2@3:0.5",
                           "random@3:0.5",
                           "random=@3:0.5",
                           "random=-1@3:0.5",
                           "random=1x@3:0.5",
                           "random=18446744073709551616@3:0.5",
                           "static@static@3:0.5",
                           "mass@paper"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(parse_policy(text, 10), doctest::Contains("schedule '"), invalid_argument);
  }
}

TEST_CASE("layers and shares out of range are errors that say the range") {
  for (const char* kind : {"", "mass@", "static@", "random=1@"}) {
    const auto parse = [kind](const char* list) { return parse_policy(std::string(kind) + list, 10); };
    CHECK_THROWS_WITH_AS(parse("10:0.5"), doctest::Contains("layer 10 is out of range 1 to 9"), invalid_argument);
    CHECK_THROWS_WITH_AS(parse("0:0.5"), doctest::Contains("layer 0 is out of range"), invalid_argument);
    CHECK_THROWS_WITH_AS(parse("5:0.5,5:0.4"), doctest::Contains("layer 5 is out of range"), invalid_argument);
    CHECK_THROWS_WITH_AS(parse("3:0"), doctest::Contains("(0, 1]"), invalid_argument);
    CHECK_THROWS_WITH_AS(parse("3:1.5"), doctest::Contains("keep 1.5"), invalid_argument);
    CHECK_THROWS_WITH_AS(parse("3:nan"), doctest::Contains("(0, 1]"), invalid_argument);
    CHECK_NOTHROW(parse("9:1"));
  }
  CHECK_NOTHROW(parse_policy("paper", 1));
}
