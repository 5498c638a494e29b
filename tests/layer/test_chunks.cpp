#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/runs.hpp"
#include "support/scripted_engine.hpp"
#include "support/tiny_engine.hpp"

/// A prompt in chunks, or with a budget of rows, is the prompt in one step.
using namespace lazyllm;
using namespace lazyllm::test;

namespace {

using Tiny = TinyEngine<>;

std::vector<Index> some_tokens(unsigned seed, Index count) {
  std::mt19937 random(seed);
  std::vector<Index> tokens(static_cast<std::size_t>(count));
  for (Index& token : tokens) token = static_cast<Index>(random() % 31);
  return tokens;
}

struct Case {
  std::string name;
  AnyPolicy policy;
  AttentionScore score = {};
};

const Schedule schedule{{1, 0.7}, {3, 0.5}};
const std::vector<std::uint8_t> mask{0, 1, 1, 0, 0, 0, 1};

const std::vector<Case> cases{
    {"ratio", KeepRatio(schedule)},
    {"late", KeepRatio(Schedule{{4, 0.3}})},
    {"every layer", KeepRatio(Schedule{{1, 0.9}, {2, 0.8}, {3, 0.7}, {4, 0.6}})},
    {"dense", KeepAll()},
    {"paper", PaperPolicy()},
    {"top-p", KeepTopP(Schedule{{2, 0.6}, {4, 0.9}})},
    {"static", StaticPruning(schedule)},
    {"prefill only", PrefillOnly<AnyPolicy>{KeepRatio(schedule)}},
    // A first chunk alone would be too short to be pruned.
    {"from 10 tokens on", MinTokens<AnyPolicy>{KeepRatio(schedule), 10}},
    {"protected",
     ProtectFirst<AnyPolicy>{ProtectLast<AnyPolicy>{ProtectMask<AnyPolicy>{KeepRatio(schedule), mask}, 3}, 2}},
    {"mean of 4", KeepRatio(schedule), {.last_queries = 4}},
    {"max of 5", KeepTopP(Schedule{{2, 0.7}}), {.last_queries = 5, .over_rows = Reduce::max}},
    {"highest head", KeepRatio(schedule), {.over_heads = Reduce::max, .last_queries = 3}},
    {"over layers", KeepRatio(schedule), {.over_layers = true}},
    {"pooled", KeepRatio(schedule), {.pooling = 5}},
    {"all options", KeepTopP(Schedule{{2, 0.8}, {3, 0.8}}), {Reduce::max, 3, Reduce::max, true, 3}},
    {"budget of revivals", ReviveAtMost<AnyPolicy>{KeepRatio(schedule), 2}},
    // Prunes the first two turns of the tests below, and not the longest prompt that there can be.
    {"below 20 tokens",
     [](const PrunePoint& point) { return point.tokens < 20 ? KeepRatio(schedule)(point) : Selection{}; }},
    {"decode only",
     [](const PrunePoint& point) { return point.new_tokens == 1 ? KeepRatio(schedule)(point) : Selection{}; }},
    // Asked with the tokens of the whole prompt, not of a chunk.
    {"depends on the prompt", [](const PrunePoint& point) {
       if (point.layers_run != 2) return Selection{};
       return Selection{.kind = Selection::Kind::top_k, .k = std::max<Index>(1, point.new_tokens / 3)};
     }}};

/// Two turns and a decode step between them, each in one step: what the others are compared with.
struct Whole {
  Whole(Tiny& engine_, const Tiny::Pruner& pruner_) : engine(engine_), pruner(pruner_), request(engine.request()) {}

  void turn(const std::vector<Index>& tokens) { results.push_back(engine.run({{&request, &pruner, tokens}}).front()); }

  Tiny& engine;
  const Tiny::Pruner& pruner;
  Tiny::Request request;
  std::vector<Tiny::Result> results;
};

void check_equal(Tiny::Request& found, Tiny::Request& whole) {
  CHECK(found.depths() == whole.depths());
  CHECK(found.cache.computed == whole.cache.computed);  // the work
  CHECK(found.sequence.aux().parked_rows() == whole.sequence.aux().parked_rows());
  CHECK(found.sequence.steps() == whole.sequence.steps());
  CHECK(found.sequence.prompt_end() == whole.sequence.prompt_end());
}

}  // namespace

TEST_CASE("chunks: kept sets, logits and work are those of one step, for all sizes of chunks") {
  Tiny engine;
  const std::vector<std::vector<Index>> turns{some_tokens(1, 17), some_tokens(2, 1), some_tokens(3, 9),
                                              some_tokens(4, 1)};
  for (const Case& one : cases) {
    CAPTURE(one.name);
    const Tiny::Pruner pruner(one.policy, one.score);
    Whole whole(engine, pruner);
    for (const auto& tokens : turns) whole.turn(tokens);
    for (Index chunk = 1; chunk <= 18; ++chunk) {
      CAPTURE(chunk);
      Tiny::Request request = engine.request();
      for (std::size_t turn = 0; turn < turns.size(); ++turn) {
        engine.steps = 0;
        CHECK(engine.run_cut({&request, &pruner, turns[turn]}, chunk) == whole.results[turn]);
        CHECK(engine.steps == (std::ssize(turns[turn]) + chunk - 1) / chunk);
      }
      check_equal(request, whole.request);
    }
  }
}

TEST_CASE("row budget: kept sets, logits and work are those of one step, for all budgets, with and without chunks") {
  Tiny engine;
  const std::vector<std::vector<Index>> turns{some_tokens(1, 17), some_tokens(2, 1), some_tokens(3, 9),
                                              some_tokens(4, 1)};
  for (const Case& one : cases) {
    CAPTURE(one.name);
    const Tiny::Pruner pruner(one.policy, one.score);
    Whole whole(engine, pruner);
    for (const auto& tokens : turns) whole.turn(tokens);
    for (Index rows = one.score.last_queries; rows <= 17; rows += 1 + rows / 5) {
      for (const Index chunk : {Index{1}, Index{4}, rows, rows + 3, Index{100}}) {
        CAPTURE(rows);
        CAPTURE(chunk);
        Tiny::Request request = engine.request();
        for (std::size_t turn = 0; turn < turns.size(); ++turn) {
          CHECK(engine.run_cut({.request = &request, .pruner = &pruner, .tokens = turns[turn], .max_rows = rows},
                               chunk) == whole.results[turn]);
        }
        check_equal(request, whole.request);
      }
    }
  }
}

TEST_CASE("row budget: no layer runs more rows of the prompt than it allows") {
  ScriptedEngine<> engine(5);
  const ScriptedEngine<>::Pruner pruner(KeepRatio(Schedule{{1, 0.7}, {3, 0.5}}));
  for (Index rows = 1; rows <= 20; ++rows) {
    CAPTURE(rows);
    ScriptedEngine<>::Sequence sequence = engine.sequence();
    ScriptedEngine<>::Entry entry{.sequence = &sequence, .pruner = &pruner, .new_tokens = 20, .max_rows = rows};
    Index computed = 0;
    do {
      const StepOutput<float> output = engine.run({entry});
      for (const LayerStats& layer : engine.step.stats().layers) CHECK(layer.computed <= rows);
      CHECK(output.rows.rows == (sequence.unfinished() ? 0 : 1));
      computed += engine.step.stats().computed();
      entry.new_tokens = 0;
    } while (sequence.unfinished());
    CHECK(computed == 20 + 14 + 14 + 7 + 7);
    CHECK(engine.script->rows_right);
  }
}

TEST_CASE("row budget: what is beyond it runs while more of the prompt is to come") {
  Tiny engine;
  const std::vector<Index> prompt = some_tokens(1, 17);
  for (const Case& one : cases) {
    CAPTURE(one.name);
    const Tiny::Pruner pruner(one.policy, one.score);
    Whole whole(engine, pruner);
    whole.turn(prompt);
    Tiny::Request request = engine.request();
    std::vector<Tiny::Result> result;
    engine.run({{&request, &pruner, {prompt.begin(), prompt.begin() + 12}, /*more=*/true, 1, /*max_rows=*/5}}, result);
    const auto waiting = [&] { return std::ranges::count(request.depths(), 0); };
    for (const Index left : {12 - 2 * 5, 1}) {  // in the end those wait that may score
      engine.run({{&request, &pruner, {}, /*more=*/true, 1, 5}}, result);
      CHECK(waiting() == std::max(left, one.score.last_queries));
    }
    CHECK(request.sequence.unfinished());
    Tiny::Turn rest{&request, &pruner, {prompt.begin() + 12, prompt.end()}, /*more=*/false, 1, 5};
    for (; rest.tokens.size() == 5 || request.sequence.unfinished(); rest.tokens.clear()) engine.run({rest}, result);
    CHECK(result.front() == whole.results.front());
    check_equal(request, whole.request);
  }
}

TEST_CASE("row budget: it holds where a chunk has waited although its prompt is not pruned there in the end") {
  ScriptedEngine<> engine(5);
  const ScriptedEngine<>::Pruner pruner([](const PrunePoint& point) {
    return point.tokens < 20 ? KeepRatio(Schedule{{2, 0.5}})(point) : Selection{};
  });
  ScriptedEngine<>::Sequence sequence = engine.sequence();
  ScriptedEngine<>::Entry entry{
      .sequence = &sequence, .pruner = &pruner, .new_tokens = 15, .more = true, .max_rows = 6};
  Index computed = 0;
  for (int steps = 0; steps == 0 || (sequence.unfinished() && steps < 20); ++steps) {
    engine.run({entry});
    for (const LayerStats& layer : engine.step.stats().layers) CHECK(layer.computed <= 6);
    computed += engine.step.stats().computed();
    entry.new_tokens = steps == 0 ? 12 : 0;
    entry.more = false;
  }
  CHECK_FALSE(sequence.unfinished());
  CHECK(computed == 27 * 5);
  CHECK(engine.script->rows_right);
}

TEST_CASE("chunks: rows run up to the first layer that may prune, are not ranked, and give no output") {
  ScriptedEngine<> engine(5);
  const ScriptedEngine<>::Pruner pruner(MinTokens<AnyPolicy>{KeepRatio(Schedule{{2, 0.5}}), 8});
  ScriptedEngine<>::Sequence sequence = engine.sequence();
  ScriptedEngine<>::Entry entry{.sequence = &sequence, .pruner = &pruner, .new_tokens = 6, .more = true};
  const StepOutput<float> output = engine.run({entry});
  CHECK(output.rows.rows == 0);
  CHECK(sequence.unfinished());
  CHECK(sequence.steps() == 0);
  // The last token runs with the next chunk: it may be the one that scores.
  CHECK(std::vector<Depth>(sequence.depths().begin(), sequence.depths().end()) == std::vector<Depth>{2, 2, 2, 2, 2, 0});
  CHECK(sequence.aux().parked_rows() == 5);
  CHECK(engine.step.stats().computed() == 10);
  const ScriptedEngine<>::Pruner dense{KeepAll()};
  ScriptedEngine<>::Sequence other = engine.sequence();
  entry.sequence = &other;
  entry.pruner = &dense;
  engine.run({entry});
  CHECK(std::vector<Depth>(other.depths().begin(), other.depths().end()) == std::vector<Depth>{5, 5, 5, 5, 5, 0});
  CHECK(other.unfinished());
}

TEST_CASE("chunks: a policy is told the outputs of the prompt") {
  const std::vector<Index> prompt = some_tokens(20, 15);
  const std::vector<Index> chunk(prompt.begin(), prompt.begin() + 10), rest(prompt.begin() + 10, prompt.end());
  for (const Index outputs : {0, 1, 4}) {
    CAPTURE(outputs);
    Tiny engine;
    const Tiny::Pruner pruner([outputs](const PrunePoint& point) {
      return point.outputs == outputs ? KeepRatio(schedule)(point) : Selection{};
    });
    Tiny::Request whole = engine.request(), request = engine.request();
    const auto expected = engine.run({{.request = &whole, .pruner = &pruner, .tokens = prompt, .outputs = outputs}});
    engine.run({{.request = &request, .pruner = &pruner, .tokens = chunk, .more = true, .outputs = outputs}});
    CHECK(engine.run({{.request = &request, .pruner = &pruner, .tokens = rest, .outputs = outputs}}) == expected);
    check_equal(request, whole);
  }
}

TEST_CASE("chunks: a policy that prunes neither the shortest nor the longest prompt fails where chunks have gone on") {
  Tiny engine;
  const Tiny::Pruner between([](const PrunePoint& point) {
    return point.tokens >= 10 && point.tokens < 20 ? KeepRatio(schedule)(point) : Selection{};
  });
  const std::vector<Index> prompt = some_tokens(6, 14);
  const std::vector<Index> chunk(prompt.begin(), prompt.begin() + 6), rest(prompt.begin() + 6, prompt.end());
  Tiny::Request request = engine.request();
  engine.run({{.request = &request, .pruner = &between, .tokens = chunk, .more = true}});
  CHECK_THROWS_WITH_AS(
      engine.run({{&request, &between, rest}}),
      "lazyllm: policy: it prunes after 1 layers a prompt of 14 tokens, of which a chunk has gone "
      "through 5 layers: where it keeps all of short and long prompts, it must not prune those between",
      invalid_argument);
  CHECK(request.sequence.length() == 6);  // as it was before the step that failed
  CHECK(request.sequence.unfinished());

  Whole whole(engine, between);
  whole.turn(prompt);
  for (const Index first : {Index{10}, Index{13}}) {  // so the shortest prompt is pruned
    CAPTURE(first);
    Tiny::Request other = engine.request();
    CHECK(engine.run_cut({&other, &between, prompt}, first) == whole.results.front());
  }
  for (const Index rows : {Index{1}, Index{5}}) {  // how long the prompt is, is known from its first row on
    CAPTURE(rows);
    Tiny::Request other = engine.request();
    CHECK(engine.run_cut({.request = &other, .pruner = &between, .tokens = prompt, .max_rows = rows}, 14) ==
          whole.results.front());
    check_equal(other, whole.request);
  }
}

TEST_CASE("chunks: a batch mixes decode steps, chunks and ends of prompts, and each is as alone") {
  std::mt19937 random(9);
  for (unsigned round = 0; round < runs(60); ++round) {
    CAPTURE(round);
    Tiny engine;
    constexpr std::size_t count = 3;
    std::vector<Tiny::Pruner> pruners;
    std::vector<std::vector<std::vector<Index>>> turns(count);
    std::vector<Tiny::Request> requests;
    std::vector<std::vector<Tiny::Result>> expected(count);
    for (std::size_t s = 0; s < count; ++s) {
      const Case& one = cases[random() % cases.size()];
      pruners.emplace_back(one.policy, one.score);
    }
    for (std::size_t s = 0; s < count; ++s) {
      requests.push_back(engine.request());
      Whole whole(engine, pruners[s]);
      for (const Index length : {1 + static_cast<Index>(random() % 20), Index{1}, Index{1}, Index{6}, Index{1}}) {
        turns[s].push_back(some_tokens(static_cast<unsigned>(random()), length));
        whole.turn(turns[s].back());
      }
      expected[s] = whole.results;
    }
    std::vector<std::size_t> turn(count, 0);
    std::vector<Index> given(count, 0);
    std::vector<Tiny::Result> found(count);
    while (std::ranges::any_of(turn, [&](std::size_t t) { return t < turns.front().size(); })) {
      std::vector<Tiny::Turn> batch;
      std::vector<std::size_t> members;
      std::vector<Tiny::Result> results;
      for (std::size_t s = 0; s < count; ++s) {
        if (turn[s] == turns[s].size() || random() % 5 == 0) continue;
        const auto& tokens = turns[s][turn[s]];
        const Index rest = std::ssize(tokens) - given[s];
        const Index chunk = std::min<Index>(rest, 1 + static_cast<Index>(random() % 7));
        Tiny::Turn one{&requests[s], &pruners[s], {}};
        one.tokens.assign(tokens.begin() + given[s], tokens.begin() + given[s] + chunk);
        one.more = chunk < rest;
        if (random() % 2 == 0) one.max_rows = pruners[s].score().last_queries + static_cast<Index>(random() % 9);
        given[s] += chunk;
        batch.push_back(one);
        members.push_back(s);
        results.push_back(std::exchange(found[s], {}));
      }
      if (batch.empty()) continue;
      engine.run(batch, results);
      for (std::size_t m = 0; m < members.size(); ++m) {
        const std::size_t s = members[m];
        found[s] = results[m];
        if (requests[s].sequence.unfinished() || given[s] < std::ssize(turns[s][turn[s]])) continue;
        CHECK(found[s] == expected[s][turn[s]]);
        found[s] = {};
        given[s] = 0;
        ++turn[s];
      }
    }
  }
}

TEST_CASE("chunks: more outputs than one come back, from a prompt in chunks and with a row budget") {
  Tiny engine;
  const std::vector<Index> prompt = some_tokens(5, 15);
  for (const Index outputs : {0, 1, 4}) {
    CAPTURE(outputs);
    const Tiny::Pruner pruner{KeepRatio(schedule)};
    Tiny::Request whole = engine.request();
    const Tiny::Turn turn{.request = &whole, .pruner = &pruner, .tokens = prompt, .outputs = outputs};
    const Tiny::Result expected = engine.run({turn}).front();
    CHECK(std::ssize(expected.logits) == outputs);
    for (Index chunk = 1; chunk <= 15; ++chunk) {
      for (const Index rows : {std::max<Index>(1, outputs), Index{6}, Tiny::unlimited}) {
        CAPTURE(chunk);
        CAPTURE(rows);
        Tiny::Request request = engine.request();
        Tiny::Turn cut = turn;
        cut.request = &request;
        cut.max_rows = rows;
        CHECK(engine.run_cut(cut, chunk) == expected);
        check_equal(request, whole);
      }
    }
  }
}

TEST_CASE("chunks: a prompt that waits at its first layer must be ended with enough outputs left to compute") {
  Tiny engine;
  const Tiny::Pruner pruner{KeepRatio(schedule)};
  Tiny::Request request = engine.request();
  engine.run({{.request = &request, .pruner = &pruner, .tokens = some_tokens(1, 6), .more = true}});
  // 5 of the 6 tokens have run; the last one and two more can come back.
  const auto refused = [&](Index outputs) -> std::string {
    try {
      engine.begin({{.request = &request, .pruner = &pruner, .tokens = some_tokens(2, 2), .outputs = outputs}});
    } catch (const invalid_argument& error) {
      return error.what();
    }
    engine.step.abort();
    return "nothing was thrown";
  };
  CHECK(refused(4) == "lazyllm: Step::begin: entry 0 has 4 outputs, out of range 0 to 3");
  CHECK(refused(3) == "nothing was thrown");
  CHECK(request.sequence.length() == 6);
  CHECK(request.sequence.unfinished());
}

TEST_CASE("row budget: a prompt whose rows wait takes no new tokens") {
  ScriptedEngine<> engine(5);
  const ScriptedEngine<>::Pruner pruner{KeepRatio(schedule)};
  ScriptedEngine<>::Sequence sequence = engine.sequence();
  ScriptedEngine<>::Entry entry{.sequence = &sequence, .pruner = &pruner, .new_tokens = 12, .max_rows = 2};
  const auto refused = [&](Index new_tokens, bool more) -> std::string {
    entry.new_tokens = new_tokens;
    entry.more = more;
    entry.outputs = 0;
    try {
      engine.begin(std::span<const ScriptedEngine<>::Entry>(&entry, 1));
    } catch (const invalid_argument& error) {
      return error.what();
    }
    engine.step.abort();
    return "nothing was thrown";
  };
  int waiting = 0;
  engine.run({entry});
  for (; sequence.unfinished(); entry.new_tokens = 0, entry.more = false, engine.run({entry})) {
    const bool first_stage = std::ranges::count(sequence.depths(), 0) > 0;
    if (first_stage) continue;  // more chunks could come
    ++waiting;
    CHECK(refused(1, false).starts_with(
        "lazyllm: Step::begin: entry 0 has 1 new tokens, out of range 0 to 0: rows of its prompt wait for layer "));
    for (const Index new_tokens : {0, 2}) {
      CHECK(refused(new_tokens, true)
                .starts_with("lazyllm: Step::begin: entry 0 has more to come, but rows of its prompt wait for layer "));
    }
    CHECK(sequence.length() == 12);
  }
  CHECK(waiting > 2);
  CHECK(engine.script->rows_right);
}

TEST_CASE("row budget: a short prompt in chunks needs no more rows behind a history than at the beginning") {
  for (const Index history : {0, 40}) {
    CAPTURE(history);
    ScriptedEngine<> engine(4);
    const ScriptedEngine<>::Pruner pruner{KeepRatio(Schedule{{2, 0.5}}), AttentionScore{.last_queries = 32}};
    ScriptedEngine<>::Sequence sequence = engine.sequence();
    if (history > 0) engine.run({{&sequence, &pruner, history}});
    for (const Index left : {10, 6, 2}) {
      CHECK_NOTHROW(engine.run({{.sequence = &sequence,
                                 .pruner = &pruner,
                                 .new_tokens = std::min<Index>(left, 4),
                                 .more = left > 4,
                                 .max_rows = 16}}));
    }
    CHECK_FALSE(sequence.unfinished());
    CHECK(engine.script->rows_right);
  }
}

TEST_CASE("top-p of all tokens keeps those without a score, too, where revival is limited") {
  ScriptedEngine<> engine(3);
  std::fill_n(engine.script->scores.begin(), 3, 1.0F);
  const ScriptedEngine<>::Pruner pruner{ReviveAtMost<AnyPolicy>{KeepTopP(Schedule{{1, 1.0}}), 4}};
  ScriptedEngine<>::Sequence sequence = engine.sequence();
  engine.run({{&sequence, &pruner, 8}});
  CHECK(std::ranges::count(sequence.depths(), 3) == 8);
  CHECK(sequence.aux().parked_rows() == 0);
}
