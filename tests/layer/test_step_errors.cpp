#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/runs.hpp"
#include "support/scripted_engine.hpp"

using namespace lazyllm;
using namespace lazyllm::test;

namespace {

using Engine = ScriptedEngine<>;
using Entries = std::vector<Engine::Entry>;

/// Two sequences with some history and parked rows, and what they were.
struct Fixture {
  Engine engine{3};
  Engine::Pruner pruner{KeepRatio(Schedule{{1, 0.5}})};
  Engine::Sequence a = engine.sequence();
  Engine::Sequence b = engine.sequence();

  Fixture() { engine.run({{&a, &pruner, 6}, {&b, &pruner, 4}}); }

  /// Tries to begin a step, checks that nothing has changed, and returns the message.
  template <class Error = invalid_argument>
  std::string refused(const Entries& entries) {
    std::string message = "nothing was thrown";
    try {
      engine.step.begin(engine.context, entries);
    } catch (const Error& error) {
      message = error.what();
    }
    check_unchanged();
    CHECK_FALSE(engine.step.running());
    return message;
  }

  void check_unchanged() {
    CHECK(a.length() == 6);
    CHECK(b.length() == 4);
    CHECK(a.aux().parked_rows() == 3);
    CHECK(b.aux().parked_rows() == 2);
    CHECK(a.steps() == 1);
    CHECK(std::vector<Depth>(a.depths().begin(), a.depths().end()) == std::vector<Depth>{3, 3, 1, 1, 1, 3});
    // Neither is left in a step.
    CHECK_NOTHROW(a.truncate(6));
    CHECK_NOTHROW(b.truncate(4));
  }
};

}  // namespace

TEST_CASE("step: begin refuses a continuation that is no token of the sequence") {
  Fixture test;
  for (const Position position : {-1, 7}) {
    const std::vector<Position> followed = {0, position};
    CHECK(test.refused({{.sequence = &test.a, .pruner = &test.pruner, .new_tokens = 1, .continuations = followed}}) ==
          "lazyllm: Step::begin: entry 0 has a continuation at position " + std::to_string(position) +
              ", out of range 0 to 6");
  }
}

TEST_CASE("step: begin refuses bad entries and changes nothing") {
  Fixture test;
  const Engine::Entry good{&test.a, &test.pruner, 2};
  CHECK(test.refused({}) == "lazyllm: Step::begin: no entries, at least 1 is needed");
  CHECK(test.refused({good, {nullptr, &test.pruner, 1}}) == "lazyllm: Step::begin: the sequence of entry 1 is null");
  CHECK(test.refused({{&test.b, nullptr, 1}}) == "lazyllm: Step::begin: the pruner of entry 0 is null");
  CHECK(test.refused({good, {&test.b, &test.pruner, 0}}) ==
        "lazyllm: Step::begin: entry 1 has 0 new tokens, out of range 1 to 2147483643");
  CHECK(test.refused({{&test.a, &test.pruner, -3}}).find("entry 0 has -3 new tokens") != std::string::npos);
  CHECK(test.refused({{&test.a, &test.pruner, std::numeric_limits<Position>::max()}})
            .find("out of range 1 to 2147483641") != std::string::npos);
  CHECK(test.refused<logic_error>({good, {&test.b, &test.pruner, 1}, good}) ==
        "lazyllm: Step::begin: entry 2 has a sequence that is in another entry or a running step");
  CHECK(test.refused<logic_error>({good, good}) ==
        "lazyllm: Step::begin: entry 1 has a sequence that is in another entry or a running step");
  Engine::Sequence deeper(4, 3);
  CHECK(test.refused({good, {&deeper, &test.pruner, 1}}) ==
        "lazyllm: Step::begin: entry 1 has 4 layers of hidden size 3, entry 0 has 3 of hidden size 3");
  Engine::Sequence wider(3, 5);
  CHECK(test.refused({good, {&wider, &test.pruner, 1}}) ==
        "lazyllm: Step::begin: entry 1 has 3 layers of hidden size 5, entry 0 has 3 of hidden size 3");
  CHECK(deeper.length() + wider.length() == 0);
  Engine::Sequence from = test.engine.sequence();
  const Engine::Sequence moved = std::move(from);
  CHECK(test.refused<logic_error>({good, {&from, &test.pruner, 1}}) ==
        "lazyllm: Step::begin: entry 1 has a sequence that was moved");

  test.engine.run({{&test.a, &test.pruner, 1}, {&test.b, &test.pruner, 1}});
  CHECK(test.engine.script->rows_right);
}

TEST_CASE("step: an entry that does not fit is named, and the others can begin without it") {
  Fixture test;
  Engine::Sequence other = ScriptedEngine<>(4).sequence();
  const std::vector<Position> beyond{7};
  const Engine::Entry good{&test.b, &test.pruner, 1};
  for (const Engine::Entry& bad : Entries{{nullptr, &test.pruner, 1},
                                          {&test.a, nullptr, 1},
                                          {&other, &test.pruner, 1},
                                          {&test.a, &test.pruner, 0},
                                          {.sequence = &test.a, .pruner = &test.pruner, .outputs = 2},
                                          {.sequence = &test.a, .pruner = &test.pruner, .max_rows = 0},
                                          {.sequence = &test.a, .pruner = &test.pruner, .continuations = beyond}}) {
    Entries entries{good, bad};
    Index named = -1;
    try {
      test.engine.step.begin(test.engine.context, entries);
    } catch (const entry_error& error) {
      named = error.entry();
    }
    CHECK(named == 1);
    test.check_unchanged();
    entries.erase(entries.begin() + named);
    CHECK_NOTHROW(test.engine.step.begin(test.engine.context, entries));
    test.engine.step.abort();
  }
}

TEST_CASE("step: a sequence of another running step is refused and stays in that step") {
  Fixture test;
  const Entries in_step{{&test.a, &test.pruner, 2}};
  test.engine.begin(in_step);
  Engine::Step other;
  for (const Entries& entries : {Entries{{&test.b, &test.pruner, 1}, {&test.a, &test.pruner, 1}},
                                 Entries{{&test.a, &test.pruner, 1}, {&test.b, &test.pruner, 1}}}) {
    CHECK_THROWS_AS(other.begin(test.engine.context, entries), logic_error);
    CHECK_FALSE(other.running());
    CHECK(test.a.length() == 8);
    CHECK_THROWS_AS(test.a.truncate(0), logic_error);
    CHECK(test.b.length() == 4);
    CHECK_NOTHROW(test.b.truncate(4));
  }
  for (auto& layer : test.engine.layers) layer.forward(test.engine.context, test.engine.step);
  CHECK(test.engine.step.end().rows.rows == 1);
  CHECK(test.a.length() == 8);
  CHECK(test.engine.script->rows_right);
}

TEST_CASE("step: a running step cannot begin again, and goes on") {
  Fixture test;
  const Entries entries{{&test.a, &test.pruner, 1}};
  test.engine.begin(entries);
  const Entries others{{&test.b, &test.pruner, 1}};
  CHECK_THROWS_WITH_AS(test.engine.step.begin(test.engine.context, others),
                       "lazyllm: Step::begin: a step is running; end or abort it first", logic_error);
  CHECK(test.engine.step.running());
  CHECK(test.a.length() == 7);
  CHECK(test.b.length() == 4);
  for (auto& layer : test.engine.layers) layer.forward(test.engine.context, test.engine.step);
  CHECK(test.engine.step.end().of(0).row(0)[2] == 106);
  CHECK(test.engine.script->rows_right);
}

TEST_CASE("step: end needs all layers, and can be called again after them") {
  Fixture test;
  CHECK_THROWS_WITH_AS(test.engine.step.end(), "lazyllm: Step::end: no step is running", logic_error);
  const Entries entries{{&test.a, &test.pruner, 1}};
  test.engine.begin(entries);
  for (Index layer = 0; layer < 3; ++layer) {
    const std::string message = "lazyllm: Step::end: " + std::to_string(layer) + " layers have run, all 3 must";
    CHECK_THROWS_WITH_AS(test.engine.step.end(), message.c_str(), logic_error);
    CHECK(test.engine.step.running());
    test.engine.layers[static_cast<std::size_t>(layer)].forward(test.engine.context, test.engine.step);
  }
  CHECK_NOTHROW(test.engine.step.end());
  CHECK(test.a.steps() == 2);
}

TEST_CASE("step: a layer too many, or a layer without a step, is refused") {
  Fixture test;
  auto& layer = test.engine.layers[0];
  CHECK_THROWS_WITH_AS(layer.forward(test.engine.context, test.engine.step),
                       "lazyllm: Step: no layer is left to run: no step is running", logic_error);
  CHECK_THROWS_WITH_AS(test.engine.step.segment(), "lazyllm: Step: no layer is left to run: no step is running",
                       logic_error);
  Engine::Step fresh;
  CHECK_THROWS_AS(layer.forward(test.engine.context, fresh), logic_error);
  test.check_unchanged();

  const Entries entries{{&test.a, &test.pruner, 1}};
  test.engine.begin(entries);
  for (auto& each : test.engine.layers) each.forward(test.engine.context, test.engine.step);
  CHECK_THROWS_WITH_AS(layer.forward(test.engine.context, test.engine.step),
                       "lazyllm: Step: no layer is left to run: all 3 have", logic_error);
  CHECK_FALSE(test.engine.step.running());
}

TEST_CASE("step: a layer on another context is refused, and ends the step") {
  Fixture test;
  const Entries entries{{&test.a, &test.pruner, 1}};
  test.engine.begin(entries);
  cpu::Context another;
  CHECK_THROWS_WITH_AS(test.engine.step.advance(another, test.engine.layers[0].attention()),
                       "lazyllm: Step::advance: the context is not that of begin", logic_error);
  CHECK_THROWS_AS(test.engine.layers[0].forward(another, test.engine.step), logic_error);
  test.check_unchanged();
}

TEST_CASE("layer: a block that knows its layer is not run as another one") {
  struct OfLayer : ScriptedAttention {
    Index layer() const { return ScriptedAttention::layer; }
  };
  Fixture test;
  std::vector<LazyDecoderLayer<OfLayer>> layers;
  for (auto& layer : test.engine.layers) layers.emplace_back(OfLayer{layer.attention()});
  const Entries entries{{&test.a, &test.pruner, 1}};
  test.engine.begin(entries);
  layers[0].forward(test.engine.context, test.engine.step);
  CHECK_THROWS_WITH_AS(layers[2].forward(test.engine.context, test.engine.step),
                       "lazyllm: LazyDecoderLayer: the attention block of layer 2 is run as layer 1", logic_error);
  CHECK_FALSE(test.engine.step.running());
  test.check_unchanged();
}

TEST_CASE("step: a pruner that is assigned during a step scores as it did when the step began") {
  struct Windows : ScriptedAttention {
    std::vector<Index>* rows;
    void token_scores(cpu::Context& context, const LayerPlan& plan, std::span<const ScoreWindow> windows) {
      rows->push_back(windows.front().rows);
      ScriptedAttention::token_scores(context, plan, windows);
    }
  };
  Fixture test;
  std::vector<Index> rows;
  std::fill_n(test.engine.script->scores.begin() + 4, 6, 9.0F);  // the new tokens stay
  const KeepRatio policy(Schedule{{1, 0.9}, {2, 0.5}});
  Engine::Pruner pruner(policy, AttentionScore{.last_queries = 2});
  const Entries entries{{&test.b, &pruner, 6}};
  test.engine.begin(entries);
  for (auto& layer : test.engine.layers) {
    Windows block{layer.attention(), &rows};
    test.engine.step.advance(test.engine.context, block);
    pruner = Engine::Pruner(policy, AttentionScore{.last_queries = 5, .over_layers = true});
  }
  test.engine.step.end();
  CHECK(rows == std::vector<Index>{2, 2});
}

TEST_CASE_TEMPLATE("step: a score of more rows than the block keeps queries of is refused in the first layer", Number,
                   Index, std::size_t) {
  struct OneQuery : ScriptedAttention {
    Number max_queries() { return 1; }
  };
  Fixture test;
  const Engine::Pruner two(KeepRatio(Schedule{{2, 0.5}}), AttentionScore{.last_queries = 2});
  OneQuery block{test.engine.layers[0].attention()};
  for (const auto& [pruner, message] :
       {std::pair<const Engine::Pruner*, const char*>{&test.pruner, ""},
        {&two,
         "lazyllm: Step::advance: last_queries 2 of the score of entry 1 is out of range 1 to 1, the queries that the "
         "attention block keeps"}}) {
    const Entries entries{{&test.b, &test.pruner, 1}, {&test.a, pruner, 1}};
    test.engine.begin(entries);
    std::string refusal;
    try {
      test.engine.step.advance(test.engine.context, block);
    } catch (const entry_error& error) {
      refusal = error.what();
      CHECK(error.entry() == 1);
    }
    CHECK(refusal == message);
    test.engine.step.abort();
    test.check_unchanged();
  }
}

TEST_CASE("step: a pruner that would be gone is refused by the compiler") {
  const auto begins = [](auto&& pruner) {
    return requires(Engine::Step step, cpu::Context context, Engine::Sequence sequence) {
      step.begin(context, sequence, std::forward<decltype(pruner)>(pruner), 1);
    };
  };
  const Engine::Pruner kept{KeepAll()};
  CHECK(begins(kept));
  CHECK_FALSE(begins(Engine::Pruner{KeepAll()}));
}

TEST_CASE("step: no room is made in a running step, and rows of another size make room for wider ones") {
  Fixture test;
  const Entries entries{{&test.a, &test.pruner, 1}};
  test.engine.begin(entries);
  CHECK_THROWS_WITH_AS(test.engine.step.reserve(test.engine.context, {.rows = 9, .hidden_size = 3}),
                       "lazyllm: Step::reserve: a step is running; end or abort it first", logic_error);
  test.engine.step.abort();
  test.check_unchanged();

  const auto refused = [&](const Engine::Step::Capacity& capacity) {
    std::string message = "nothing was thrown";
    try {
      test.engine.step.reserve(test.engine.context, capacity);
    } catch (const invalid_argument& error) {
      message = error.what();
    }
    return message;
  };
  const std::string out_of_range = " is out of range 0 to 281474976710656";
  CHECK(refused({.sequences = -1}) == "lazyllm: Step::reserve: sequences -1" + out_of_range);
  CHECK(refused({.tokens = -2}) == "lazyllm: Step::reserve: tokens -2" + out_of_range);
  CHECK(refused({.rows = -3}) == "lazyllm: Step::reserve: rows -3" + out_of_range);
  CHECK(refused({.layers = Index{1} << 50}) == "lazyllm: Step::reserve: layers 1125899906842624" + out_of_range);
  CHECK(refused({.rows = 64}) == "lazyllm: Step::reserve: hidden_size 0 is out of range 1 to 281474976710656");
  CHECK(refused({.rows = Index{1} << 20, .hidden_size = Index{1} << 44}) ==
        "lazyllm: Step::reserve: hidden_size 17592186044416 is out of range 1 to 268435456 for 1048576 rows");

  test.engine.step.reserve(test.engine.context, {.rows = 64, .hidden_size = 4096});
  Engine::Sequence wide(3, 4096);
  const RowsView<float> rows = test.engine.step.begin(test.engine.context, wide, test.pruner, 64);
  CHECK(rows.rows == 64);
  std::fill_n(rows.data, rows.rows * rows.width, 1.0F);
  test.engine.step.abort();
}

TEST_CASE("step: a policy's errors are known before anything runs") {
  Fixture test;
  const Engine::Pruner beyond(KeepRatio(Schedule{{3, 0.5}}));
  const Entries entries{{&test.b, &beyond, 1}, {&test.a, &beyond, 1}};
  CHECK_THROWS_WITH_AS(test.engine.begin(entries),
                       "lazyllm: schedule: layer 3 is out of range 1 to 2 of a model with 3 layers", invalid_argument);
  CHECK_FALSE(test.engine.step.running());
  test.check_unchanged();
}

TEST_CASE("step: one that is destroyed while it runs lets its sequences go") {
  Fixture test;
  {
    Step<Engine::Sequence, Engine::Pruner> step;
    step.begin(test.engine.context, test.a, test.pruner, 3);
    CHECK_THROWS_AS(test.a.clear(), logic_error);
  }
  test.check_unchanged();
}

TEST_CASE("step: the plan says before attention whether scores will be asked for") {
  Fixture test;
  const Engine::Pruner late(KeepRatio(Schedule{{2, 0.5}}));
  const Engine::Pruner summed(KeepRatio(Schedule{{2, 0.5}}), AttentionScore{.over_layers = true});
  const Engine::Pruner in_vain(KeepAll(), AttentionScore{.over_layers = true});
  const Engine::Pruner fixed(StaticPruning(Schedule{{1, 0.5}}));
  const auto wanted = [&](const Engine::Pruner& pruner) {
    std::vector<bool> result;
    Engine::Sequence fresh = test.engine.sequence();
    test.engine.begin(Entries{{&fresh, &pruner, 8}});
    for (auto& layer : test.engine.layers) {
      result.push_back(test.engine.step.plan().scores_wanted());
      layer.forward(test.engine.context, test.engine.step);
    }
    test.engine.step.end();
    return result;
  };
  CHECK(wanted(late) == std::vector<bool>{false, true, false});
  CHECK(wanted(summed) == std::vector<bool>{true, true, false});
  CHECK(wanted(in_vain) == std::vector<bool>{false, false, false});
  CHECK(wanted(fixed) == std::vector<bool>{true, false, false});
}

TEST_CASE("step: abort without a step does nothing") {
  Fixture test;
  test.engine.step.abort();
  test.check_unchanged();
}

TEST_CASE("step: options out of range are refused with entry, value and range") {
  Fixture test;
  Engine::Entry entry{.sequence = &test.a, .pruner = &test.pruner, .new_tokens = 4};
  const auto with = [&](Index new_tokens, bool more, Index outputs, Index max_rows) {
    entry.new_tokens = new_tokens;
    entry.more = more;
    entry.outputs = outputs;
    entry.max_rows = max_rows;
    return test.refused({{&test.b, &test.pruner, 1}, entry});
  };
  const Index unlimited = Engine::Entry::unlimited;
  const std::string where = "lazyllm: Step::begin: entry 1 has ";
  CHECK(with(4, false, -1, unlimited) == where + "-1 outputs, out of range 0 to 4");
  CHECK(with(4, false, 5, unlimited) == where + "5 outputs, out of range 0 to 4");
  CHECK(with(0, false, 1, unlimited) == where + "0 new tokens, out of range 1 to 2147483641");
  CHECK(with(0, true, 1, unlimited) == where + "0 new tokens, out of range 1 to 2147483641");
  const std::string tail = ": the tokens that score or are outputs run together";
  CHECK(with(4, false, 1, 0) == where + "max_rows 0, out of range, at least 1" + tail);
  CHECK(with(4, false, 1, -7) == where + "max_rows -7, out of range, at least 1" + tail);
  CHECK(with(4, false, 3, 2) == where + "max_rows 2, out of range, at least 3" + tail);
  const Engine::Pruner window(KeepAll(), AttentionScore{.last_queries = 3});
  entry.pruner = &window;
  CHECK(with(4, false, 1, 2) == where + "max_rows 2, out of range, at least 3" + tail);
  CHECK(with(2, false, 1, 1) == where + "max_rows 1, out of range, at least 2" + tail);
  entry.max_rows = 2;
  CHECK_NOTHROW(test.engine.run({entry}));
}

TEST_CASE("step: the steps of one prompt cannot ask for rows that have run already") {
  Engine engine(6);
  const auto eight = [](const PrunePoint& point) {
    if (point.layers_run != 2) return Selection{};
    return Selection{.kind = Selection::Kind::top_k, .k = 8, .protect_last = 8};
  };
  const Engine::Pruner pruner{eight}, window{eight, AttentionScore{.last_queries = 6}},
      sums{eight, AttentionScore{.over_layers = true}};
  Engine::Sequence sequence = engine.sequence();
  // Four steps of three rows: the last one ranks, and takes the first three of the eight that stay to the end.
  Engine::Entry entry{.sequence = &sequence, .pruner = &pruner, .new_tokens = 12, .max_rows = 3};
  for (int step = 0; step < 4; ++step) {
    engine.run({entry});
    entry.new_tokens = 0;
  }
  const std::vector<Depth> depths{2, 2, 2, 2, 6, 6, 6, 2, 2, 2, 2, 2};
  CHECK(std::ranges::equal(sequence.depths(), depths));
  entry.max_rows = 8;
  const auto refused = [&](const Engine::Pruner& by, Index outputs) {
    entry.pruner = &by;
    entry.outputs = outputs;
    std::string message = "nothing was thrown";
    try {
      engine.begin(std::span(&entry, 1));
    } catch (const invalid_argument& error) {
      message = error.what();
    }
    CHECK_FALSE(engine.step.running());
    CHECK(std::ranges::equal(sequence.depths(), depths));
    return message;
  };
  CHECK(refused(pruner, 8) == "lazyllm: Step::begin: entry 0 has 8 outputs, out of range 0 to 5");
  CHECK(refused(window, 1) ==
        "lazyllm: Step::begin: the score of entry 0 has last_queries 6, more than that of its prompt's earlier steps: "
        "position 6 has run already");
  CHECK(refused(sums, 1) ==
        "lazyllm: Step::begin: the score of entry 0 sums over layers, that of its prompt's earlier steps did not");
  entry.pruner = &pruner;
  entry.outputs = 5;
  const StepOutput<float> output = engine.run({entry});
  REQUIRE(output.rows.rows == 5);
  for (Index row = 0; row < 5; ++row) CHECK(output.rows.row(row)[2] == static_cast<float>(107 + row));
  CHECK(engine.script->rows_right);
}

TEST_CASE("step: a chunk's rows that have run cannot score with a wider window") {
  Engine engine(3);
  const Engine::Pruner one{KeepAll()}, three{KeepAll(), AttentionScore{.last_queries = 3}};
  Engine::Sequence sequence = engine.sequence();
  engine.run({{.sequence = &sequence, .pruner = &one, .new_tokens = 5, .more = true}});
  CHECK_THROWS_WITH_AS(engine.step.begin(engine.context, sequence, three, 1),
                       "lazyllm: Step::begin: the score of entry 0 has last_queries 3, more than that of its prompt's "
                       "earlier steps: position 3 has run already",
                       invalid_argument);
  engine.run({{.sequence = &sequence, .pruner = &three, .new_tokens = 2}});  // the window is what has not run
  CHECK(sequence.steps() == 1);
}

TEST_CASE("step: random entries are refused and change nothing, or run and return what they ask for") {
  const auto cuts = KeepRatio(Schedule{{1, 0.8}, {3, 0.5}});
  const std::vector<Engine::Pruner> pruners{
      Engine::Pruner{KeepAll()},
      Engine::Pruner{cuts},
      Engine::Pruner{ProtectLast<AnyPolicy>{cuts, 6}},
      Engine::Pruner{cuts, AttentionScore{.last_queries = 5}},
      Engine::Pruner{ProtectLast<AnyPolicy>{cuts, 4}, AttentionScore{.last_queries = 2, .over_layers = true}},
      Engine::Pruner{StaticPruning(Schedule{{2, 0.5}})}};
  Index refused = 0, answered = 0;
  for (unsigned seed = 0; seed < runs(300); ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto between = [&](Index first, Index last) {
      return std::uniform_int_distribution<Index>(first, last)(random);
    };
    Engine engine(between(4, 6));
    for (float& score : engine.script->scores) score = static_cast<float>(between(0, 20));
    Engine::Sequence sequence = engine.sequence();
    while (sequence.length() < 200) {
      const Engine::Entry entry{.sequence = &sequence,
                                .pruner = &pruners[static_cast<std::size_t>(between(0, std::ssize(pruners) - 1))],
                                .new_tokens = between(0, 12),
                                .more = between(0, 2) == 0,
                                .outputs = between(0, 1) == 0 ? 1 : between(0, 10),
                                .max_rows = between(0, 2) == 0 ? Engine::Entry::unlimited : between(1, 12)};
      const std::vector<Depth> before(sequence.depths().begin(), sequence.depths().end());
      const Index steps = sequence.steps();
      try {
        const StepOutput<float> output = engine.run({entry});
        CHECK(output.rows.rows == (sequence.unfinished() ? 0 : entry.outputs));
        for (Index row = 0; row < output.rows.rows; ++row) {
          CHECK(output.rows.row(row)[2] == static_cast<float>(100 + sequence.length() - output.rows.rows + row));
        }
        answered += output.rows.rows;
      } catch (const invalid_argument&) {
        ++refused;
        CHECK(std::ranges::equal(sequence.depths(), before));
        CHECK(sequence.steps() == steps);
        CHECK_FALSE(engine.step.running());
      }
      CHECK(engine.script->rows_right);
      if (between(0, 30) == 0) sequence.clear();
      if (between(0, 60) == 0) break;
    }
  }
  CHECK(refused > 0);
  CHECK(answered > 0);
}

TEST_CASE("step: one that is given up gives the slots of a shared pool back") {
  using Storage = cpu::PooledStorage<float>;
  using Pooled = ScriptedEngine<Storage>;
  Pooled engine(4);
  const auto pool = std::make_shared<Storage::Pool>(Pooled::hidden_size);
  Pooled::Sequence sequence(4, AuxCache(Storage(pool)));
  const Pooled::Pruner pruner(KeepRatio(Schedule{{1, 0.5}, {2, 0.5}}));
  auto& scores = engine.script->scores;
  scores[0] = scores[1] = scores[2] = scores[3] = 9;
  engine.run({{&sequence, &pruner, 10}});
  REQUIRE(pool->slots_in_use() == 7);
  scores[5] = scores[6] = scores[0] = 20;  // 5 and 6 come back after layer 1, 6 stops again after layer 2
  const std::vector<Pooled::Entry> entries{{&sequence, &pruner, 1}};
  for (std::size_t layers = 0; layers <= 4; ++layers) {
    CAPTURE(layers);
    engine.begin(entries);
    for (std::size_t layer = 0; layer < layers; ++layer) engine.layers[layer].forward(engine.context, engine.step);
    engine.step.abort();
    CHECK(pool->slots_in_use() == 7);
    CHECK(sequence.aux().parked_rows() == 7);
  }
}

TEST_CASE("step: a request that has failed is not held to the queries that the block keeps") {
  struct OneQuery : ScriptedAttention {
    Index max_queries() { return 1; }
  };
  Fixture test;
  const Engine::Pruner wide([](const PrunePoint&) -> Selection { throw std::runtime_error("no"); },
                            AttentionScore{.last_queries = 2});
  const Entries entries{{&test.b, &test.pruner, 1}, {&test.a, &wide, 1}};
  test.engine.begin(entries);
  OneQuery block{test.engine.layers[0].attention()};
  CHECK_NOTHROW(test.engine.step.advance(test.engine.context, block));
  test.engine.step.abort();
  test.check_unchanged();
}

TEST_CASE("step: between the halves of advance there is no plan, and the second needs the first") {
  Fixture test;
  const Entries entries{{&test.a, &test.pruner, 1}};
  test.engine.begin(entries);
  auto& block = test.engine.layers[0].attention();
  CHECK_THROWS_AS(test.engine.step.end_advance(), logic_error);
  block.attend(test.engine.context, test.engine.step.plan(), test.engine.step.hidden());
  test.engine.step.begin_advance(test.engine.context, block);
  CHECK_THROWS_AS((void)test.engine.step.plan(), logic_error);
  CHECK_THROWS_AS(test.engine.step.advance(test.engine.context, block), logic_error);
  test.engine.step.end_advance();
  CHECK(test.engine.step.plan().layer() == 1);
  test.engine.step.begin_advance(test.engine.context, block);
  test.engine.step.abort();
  test.engine.begin(entries);
  CHECK(test.engine.step.plan().layer() == 0);
  test.engine.step.abort();
  test.check_unchanged();
}
