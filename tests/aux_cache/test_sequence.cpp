#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/scripted_engine.hpp"

using namespace lazyllm;
using namespace lazyllm::test;

namespace {

using Engine = ScriptedEngine<>;
using Depths = std::vector<Depth>;

Depths depths(const Engine::Sequence& sequence) { return {sequence.depths().begin(), sequence.depths().end()}; }

/// An engine of 4 layers and a sequence of 6 tokens, of which 1, 3 and 4 were pruned after layer 1 and 2 after layer 3.
struct Pruned {
  Engine engine{4};
  Engine::Sequence sequence = engine.sequence();
  Engine::Pruner pruner{KeepRatio(Schedule{{1, 0.5}, {3, 0.5}})};

  Pruned() {
    engine.script->scores = {9, 1, 5, 2, 3, 0};
    engine.script->scores.resize(64);
    engine.run({{&sequence, &pruner, 6}});
    REQUIRE(depths(sequence) == Depths{4, 1, 3, 1, 1, 4});
  }
};

/// The message of the `Error` that `call` throws.
template <class Error = invalid_argument, class Call>
std::string message(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("sequence: starts empty and refuses a model without layers") {
  const Engine engine(3);
  const Engine::Sequence sequence = engine.sequence();
  CHECK(sequence.layers() == 3);
  CHECK(sequence.length() == 0);
  CHECK(sequence.steps() == 0);
  const auto made_with = [](Index layers) { return message([&] { Engine::Sequence(layers, 3); }); };
  CHECK(made_with(0) == "lazyllm: Sequence: layers 0 is out of range 1 to 65535");
  CHECK(made_with(65536) == "lazyllm: Sequence: layers 65536 is out of range 1 to 65535");
  CHECK(made_with(-2) == "lazyllm: Sequence: layers -2 is out of range 1 to 65535");
  CHECK(made_with(65535) == "nothing was thrown");
}

TEST_CASE("sequence: an Aux Cache that holds rows already is refused") {
  cpu::Context context;
  Engine::Sequence::aux_type aux(3);
  const Position one[] = {0};
  aux.acquire(context, one);
  CHECK(message([&] { Engine::Sequence(4, std::move(aux)); }) ==
        "lazyllm: Sequence: the Aux Cache holds 1 rows, it must be empty");
}

TEST_CASE("sequence: a step leaves each token's depth and parks those that have not gone all the way") {
  Pruned test;
  CHECK(test.sequence.length() == 6);
  CHECK(test.sequence.steps() == 1);
  CHECK(test.sequence.aux().parked_rows() == 4);
  for (const Position p : {1, 2, 3, 4}) CHECK(test.sequence.aux().holds(p));
  for (const Position p : {0, 5}) CHECK_FALSE(test.sequence.aux().holds(p));
  CHECK_FALSE(test.sequence.unfinished());
  CHECK(computed_share(test.sequence.depths(), 4) == doctest::Approx((4 + 1 + 3 + 1 + 1 + 4) / 24.0));
  CHECK(computed_share(test.sequence.depths().first(2), 4) == doctest::Approx(5 / 8.0));
  CHECK(computed_share({}, 4) == 1);
}

TEST_CASE("sequence: truncate drops tokens with their parked rows") {
  Pruned test;
  test.sequence.truncate(6);
  CHECK(test.sequence.length() == 6);
  CHECK(test.sequence.aux().parked_rows() == 4);
  test.sequence.truncate(3);
  CHECK(depths(test.sequence) == Depths{4, 1, 3});
  CHECK(test.sequence.aux().parked_rows() == 2);
  CHECK_FALSE(test.sequence.aux().holds(3));
  // The rest still works: everything is revived and comes to an end.
  const Engine::Pruner keep_all{KeepAll()};
  test.engine.run({{&test.sequence, &keep_all, 2}});
  CHECK(depths(test.sequence) == Depths{4, 4, 4, 4, 4});
  CHECK(test.sequence.aux().parked_rows() == 0);
  CHECK(test.engine.step.stats().revived() == 2);
  CHECK(test.engine.script->rows_right);
}

TEST_CASE("sequence: truncate names the allowed range and changes nothing") {
  Pruned test;
  CHECK(message([&] { test.sequence.truncate(7); }) == "lazyllm: Sequence::truncate: 7 tokens is out of range 0 to 6");
  CHECK(message([&] { test.sequence.truncate(-1); }) ==
        "lazyllm: Sequence::truncate: -1 tokens is out of range 0 to 6");
  CHECK(test.sequence.length() == 6);
  CHECK(test.sequence.aux().parked_rows() == 4);
}

TEST_CASE("sequence: clear drops tokens, parked rows and counters") {
  Pruned test;
  test.sequence.clear();
  CHECK(test.sequence.length() == 0);
  CHECK(test.sequence.steps() == 0);
  CHECK(test.sequence.aux().parked_rows() == 0);
  test.engine.run({{&test.sequence, &test.pruner, 6}});
  CHECK(depths(test.sequence) == Depths{4, 1, 3, 1, 1, 4});
}

TEST_CASE("sequence: a fork and its parent go on alone") {
  Pruned test;
  Engine::Sequence fork = test.sequence.fork(test.engine.context);
  CHECK(depths(fork) == depths(test.sequence));
  CHECK(fork.steps() == 1);
  CHECK(fork.layers() == 4);
  CHECK(fork.aux().parked_rows() == 4);

  const Engine::Pruner keep_all{KeepAll()};
  test.engine.run({{&fork, &keep_all, 1}});
  CHECK(depths(fork) == Depths{4, 4, 4, 4, 4, 4, 4});
  CHECK(test.engine.script->rows_right);
  CHECK(depths(test.sequence) == Depths{4, 1, 3, 1, 1, 4});
  CHECK(test.sequence.aux().parked_rows() == 4);

  test.engine.run({{&test.sequence, &keep_all, 1}});
  CHECK(test.engine.step.stats().revived() == 4);
  CHECK(test.engine.script->rows_right);
}

TEST_CASE("sequence: appended computed tokens need no work, but are attended to and can be pruned") {
  Engine engine(3);
  Engine::Sequence sequence = engine.sequence();
  sequence.append_computed(4);
  CHECK(depths(sequence) == Depths{3, 3, 3, 3});
  const Engine::Pruner pruner{KeepRatio(Schedule{{1, 0.5}})};
  engine.script->scores[2] = 1;
  engine.run({{&sequence, &pruner, 1}});
  CHECK(engine.step.stats().computed() == 3);
  CHECK(engine.step.stats().layers[0].active == 5);
  CHECK(engine.script->active == std::vector<Position>{0, 2, 4});
  CHECK(depths(sequence) == Depths{3, 3, 3, 3, 3});
  CHECK(sequence.aux().parked_rows() == 0);
  CHECK(message([&] { sequence.append_computed(-1); }) ==
        "lazyllm: Sequence::append_computed: -1 tokens is out of range 0 to 2147483642");
  CHECK(message([&] { sequence.append_computed(2147483643); }) ==
        "lazyllm: Sequence::append_computed: 2147483643 tokens is out of range 0 to 2147483642");
  CHECK(sequence.length() == 5);
}

TEST_CASE("sequence: erase drops tokens in the middle and moves those behind") {
  for (Index first = 0; first <= 6; ++first) {
    for (Index last = first; last <= 6; ++last) {
      CAPTURE(first);
      CAPTURE(last);
      Pruned test;
      Depths expected = depths(test.sequence);
      std::vector<float> tokens{100, 101, 102, 103, 104, 105};  // the third number of their rows
      expected.erase(expected.begin() + first, expected.begin() + last);
      tokens.erase(tokens.begin() + first, tokens.begin() + last);
      test.sequence.erase(first, last);
      CHECK(depths(test.sequence) == expected);
      CHECK(test.sequence.steps() == (expected.empty() ? 0 : 1));
      CHECK(test.sequence.prompt_end() == std::ssize(expected));
      const auto& aux = test.sequence.aux();
      CHECK(aux.parked_rows() == std::ranges::count_if(expected, [](Depth depth) { return depth < 4; }));
      for (Position p = 0; p < std::ssize(expected); ++p) {
        const auto i = static_cast<std::size_t>(p);
        REQUIRE(aux.holds(p) == (expected[i] < 4));
        if (aux.holds(p)) CHECK(aux.rows().row(aux.slot(p))[2] == tokens[i]);
      }
      // All that is left can be revived at its depth.
      const Engine::Pruner keep_all{KeepAll()};
      test.engine.run({{&test.sequence, &keep_all, 1}});
      CHECK(depths(test.sequence) == Depths(expected.size() + 1, 4));
      CHECK(test.engine.step.stats().revived() ==
            std::ranges::count_if(expected, [](Depth depth) { return depth < 4; }));
    }
  }
}

TEST_CASE("sequence: erase names the allowed range and changes nothing") {
  Pruned test;
  CHECK(message([&] { test.sequence.erase(-1, 2); }) ==
        "lazyllm: Sequence::erase: first -1 and last 2 are out of range 0 to 6, ascending");
  CHECK(message([&] { test.sequence.erase(3, 2); }) ==
        "lazyllm: Sequence::erase: first 3 and last 2 are out of range 0 to 6, ascending");
  CHECK(message([&] { test.sequence.erase(0, 7); }) ==
        "lazyllm: Sequence::erase: first 0 and last 7 are out of range 0 to 6, ascending");
  CHECK(depths(test.sequence) == Depths{4, 1, 3, 1, 1, 4});
  CHECK(test.sequence.aux().parked_rows() == 4);
}

TEST_CASE("sequence: only tokens that have gone through all layers can be shared") {
  Pruned test;
  Engine::Sequence deeper(6, 3);
  CHECK(message<logic_error>([&] { deeper.append_shared(test.sequence, 1); }) ==
        "lazyllm: Sequence::append_shared: the sequence has 0 tokens and 6 layers, it must have 0 and 4");
  CHECK_NOTHROW(test.sequence.check_shareable(0));
  CHECK_NOTHROW(test.sequence.check_shareable(1));
  CHECK(message([&] { test.sequence.check_shareable(2); }) ==
        "lazyllm: Sequence::check_shareable: position 1 has gone through 1 of 4 layers, a shared token through all");
  CHECK(message([&] { test.sequence.check_shareable(7); }) ==
        "lazyllm: Sequence::check_shareable: 7 tokens is out of range 0 to 6");
  CHECK(message([&] { test.sequence.check_shareable(-1); }) ==
        "lazyllm: Sequence::check_shareable: -1 tokens is out of range 0 to 6");
  const Engine::Pruner keep_all{KeepAll()};
  test.engine.run({{&test.sequence, &keep_all, 1}});
  CHECK_NOTHROW(test.sequence.check_shareable(7));
  auto other = test.engine.sequence();
  other.append_shared(test.sequence, 7);
  CHECK(depths(other) == Depths(7, 4));
  CHECK(message<logic_error>([&] { other.append_shared(test.sequence, 7); }) ==
        "lazyllm: Sequence::append_shared: the sequence has 7 tokens and 4 layers, it must have 0 and 4");
  const Pruned pruned;
  auto third = test.engine.sequence();
  CHECK(message([&] { third.append_shared(pruned.sequence, 2); }).find("position 1 has gone through 1 of 4 layers") !=
        std::string::npos);
  CHECK(third.length() == 0);
}

TEST_CASE("sequence: protected from changes while a step runs") {
  Pruned test;
  const std::vector<Engine::Entry> entries{{&test.sequence, &test.pruner, 1}};
  test.engine.begin(entries);
  const std::string end = " called while the sequence is in a running step";
  const auto refused = [&](const auto& call) { return message<logic_error>(call); };
  CHECK(refused([&] { test.sequence.truncate(0); }) == "lazyllm: Sequence::truncate" + end);
  CHECK(refused([&] { test.sequence.clear(); }) == "lazyllm: Sequence::truncate" + end);
  CHECK(refused([&] { test.sequence.append_computed(1); }) == "lazyllm: Sequence::append_computed" + end);
  CHECK(refused([&] { test.sequence.erase(0, 1); }) == "lazyllm: Sequence::erase" + end);
  CHECK(refused([&] { test.sequence.check_shareable(0); }) == "lazyllm: Sequence::check_shareable" + end);
  CHECK(refused([&] { (void)test.sequence.fork(test.engine.context); }) == "lazyllm: Sequence::fork" + end);
  CHECK(refused([&] { (void)test.sequence.save(test.engine.context); }) == "lazyllm: Sequence::save" + end);
  CHECK(test.sequence.length() == 7);
  test.engine.step.abort();
  CHECK(test.sequence.length() == 6);
  CHECK(test.sequence.steps() == 1);
  test.sequence.truncate(0);
  CHECK(test.sequence.length() == 0);
  CHECK(test.sequence.steps() == 0);  // an emptied sequence starts over
}

TEST_CASE("sequence: an unfinished prompt can only be dropped as a whole") {
  Pruned test;
  test.engine.run({{.sequence = &test.sequence, .pruner = &test.pruner, .new_tokens = 4, .more = true}});
  REQUIRE(test.sequence.unfinished());
  CHECK(test.sequence.length() == 10);
  CHECK(test.sequence.steps() == 1);
  const std::string end = " called while a prompt is unfinished";
  const auto refused = [&](const auto& call) { return message<logic_error>(call); };
  CHECK(refused([&] { test.sequence.append_computed(1); }) == "lazyllm: Sequence::append_computed" + end);
  CHECK(refused([&] { test.sequence.erase(0, 1); }) == "lazyllm: Sequence::erase" + end);
  CHECK(refused([&] { (void)test.sequence.fork(test.engine.context); }) == "lazyllm: Sequence::fork" + end);
  CHECK(refused([&] { (void)test.sequence.save(test.engine.context); }) == "lazyllm: Sequence::save" + end);
  for (const Index tokens : {7, 8, 9}) {
    CHECK(message([&] { test.sequence.truncate(tokens); }) ==
          "lazyllm: Sequence::truncate: " + std::to_string(tokens) +
              " tokens is out of range 0 to 6: the prompt behind is unfinished");
  }
  test.sequence.truncate(10);
  CHECK(test.sequence.unfinished());
  CHECK(test.sequence.finished_tokens() == 6);
  test.sequence.truncate(test.sequence.finished_tokens());
  CHECK(test.sequence.finished_tokens() == 6);
  CHECK_FALSE(test.sequence.unfinished());
  CHECK(depths(test.sequence) == Depths{4, 1, 3, 1, 1, 4});
  CHECK(test.sequence.aux().parked_rows() == 4);
  const Engine::Pruner keep_all{KeepAll()};
  test.engine.run({{&test.sequence, &keep_all, 2}});
  CHECK(depths(test.sequence) == Depths(8, 4));
  CHECK(test.engine.script->rows_right);
}

TEST_CASE("sequence: can be moved with its parked rows") {
  Pruned test;
  Engine::Sequence moved = std::move(test.sequence);
  CHECK(depths(moved) == Depths{4, 1, 3, 1, 1, 4});
  Engine::Sequence assigned = test.engine.sequence();
  assigned = std::move(moved);
  auto& same = assigned;
  assigned = std::move(same);
  CHECK(depths(assigned) == Depths{4, 1, 3, 1, 1, 4});
  CHECK(assigned.steps() == 1);
  CHECK(assigned.prompt_end() == 6);
  const Engine::Pruner keep_all{KeepAll()};
  test.engine.run({{&assigned, &keep_all, 1}});
  CHECK(test.engine.step.stats().revived() == 4);
  CHECK(test.engine.script->rows_right);
}

TEST_CASE("sequence: one that was moved from is refused by a step until it is assigned to") {
  Pruned test;
  Engine::Sequence moved = std::move(test.sequence);
  CHECK(message<logic_error>([&] {
          test.engine.run({{&test.sequence, &test.pruner, 1}});
        }) == "lazyllm: Step::begin: entry 0 has a sequence that was moved");
  test.sequence = std::move(moved);
  CHECK_NOTHROW(test.engine.run({{&test.sequence, &test.pruner, 1}}));
  CHECK(message<logic_error>([&] {
          test.engine.run({{&moved, &test.pruner, 1}});
        }) == "lazyllm: Step::begin: entry 0 has a sequence that was moved");
}

TEST_CASE("sequence: one with an unfinished prompt can be assigned") {
  Pruned test;
  Engine::Sequence still = test.sequence.fork(test.engine.context);
  for (Engine::Sequence* sequence : {&test.sequence, &still}) {
    test.engine.run({{.sequence = sequence, .pruner = &test.pruner, .new_tokens = 4, .more = true}});
  }
  Engine::Sequence assigned = test.engine.sequence();
  assigned = std::move(test.sequence);
  CHECK(assigned.unfinished());
  for (Engine::Sequence* sequence : {&assigned, &still}) {
    test.engine.run({{.sequence = sequence, .pruner = &test.pruner, .new_tokens = 3}});
  }
  CHECK(depths(assigned) == depths(still));
  CHECK(assigned.prompt_end() == still.prompt_end());
  CHECK(test.engine.script->rows_right);
}

TEST_CASE("sequence: erase moves the prompt's end by what it takes before it alone") {
  Engine engine(2);
  const Engine::Pruner keep_all{KeepAll()};
  for (Index first = 0; first <= 8; ++first) {
    for (Index last = first; last <= 8; ++last) {
      CAPTURE(first);
      CAPTURE(last);
      Engine::Sequence sequence = engine.sequence();
      engine.run({{&sequence, &keep_all, 4}});
      for (int step = 0; step < 4; ++step) engine.run({{&sequence, &keep_all, 1}});
      sequence.append_computed(0);
      CHECK(sequence.prompt_end() == 4);
      sequence.erase(first, last);
      CHECK(sequence.prompt_end() == 4 - (std::min<Index>(last, 4) - std::min<Index>(first, 4)));
    }
  }
}

TEST_CASE("sequence: truncate into the prompt moves its end, behind it does not") {
  Engine engine(2);
  const Engine::Pruner keep_all{KeepAll()};
  for (Index tokens = 0; tokens <= 7; ++tokens) {
    CAPTURE(tokens);
    Engine::Sequence sequence = engine.sequence();
    engine.run({{&sequence, &keep_all, 4}});
    for (int step = 0; step < 3; ++step) engine.run({{&sequence, &keep_all, 1}});
    sequence.truncate(tokens);
    CHECK(sequence.prompt_end() == std::min<Index>(tokens, 4));
  }
}
