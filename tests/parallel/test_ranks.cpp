#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "lazyllm/lazyllm.hpp"
#include "support/split_engine.hpp"
#include "support/thread_ranks.hpp"

using namespace lazyllm;
using namespace lazyllm::test;

TEST_CASE("ranks: numbers are reduced over all ranks") {
  ThreadRanks threads(3);
  threads.run([&](Index rank) {
    Ranks ranks(rank, 3, threads.all_reduce(rank));
    const auto own = [rank](std::span<std::int64_t> values) {
      values[0] = rank + 1;
      values[1] = rank == 1 ? 7 : 0;
    };
    for (int again = 0; again < 3; ++again) {
      const auto sums = ranks.all_reduce(2, ReduceOp::sum, own);
      CHECK(std::vector(sums.begin(), sums.end()) == std::vector<std::int64_t>{6, 7});
      const auto highest = ranks.all_reduce(2, ReduceOp::max, own);
      CHECK(std::vector(highest.begin(), highest.end()) == std::vector<std::int64_t>{3, 7});
    }
  });
}

TEST_CASE("ranks: what one rank throws is thrown on all, and they go on") {
  ThreadRanks threads(3);
  const auto error_of = [](Ranks& ranks, const auto& work) -> std::string {
    try {
      ranks.together(work);
    } catch (const rank_error& error) {
      return error.what();
    }
    return "none";
  };
  threads.run([&](Index rank) {
    Ranks ranks(rank, 3, threads.all_reduce(rank));
    CHECK(error_of(ranks, [&] {
            if (rank == 2) throw std::runtime_error("out of paper");
          }) == "lazyllm: rank 2 of 3: out of paper");
    CHECK(error_of(ranks, [&] {  // of several, the lowest speaks
            if (rank > 0) detail::fail("tray ", rank, " is empty");
          }) == "lazyllm: rank 1 of 3: tray 1 is empty");
    CHECK(error_of(ranks, [&] {
            if (rank == 0) throw 5;
          }) == "lazyllm: rank 0 of 3: an exception of unknown type");
    CHECK(error_of(ranks, [&] {
            if (rank == 0) throw std::runtime_error(std::string(3000, 'x'));
          }) == "lazyllm: rank 0 of 3: " + std::string(511, 'x'));
    CHECK(error_of(ranks, [] {}) == "none");
  });
}

TEST_CASE("ranks: arguments out of range are refused") {
  const Ranks::AllReduce nothing = [](std::span<std::int64_t>, ReduceOp) {};
  CHECK_THROWS_WITH_AS(Ranks(2, 2, nothing), "lazyllm: Ranks: rank 2 is out of range 0 to 1", invalid_argument);
  CHECK_THROWS_WITH_AS(Ranks(-1, 2, nothing), "lazyllm: Ranks: rank -1 is out of range 0 to 1", invalid_argument);
  CHECK_THROWS_WITH_AS(Ranks(0, 0, nothing), "lazyllm: Ranks: count 0 is out of range, at least 1", invalid_argument);
  CHECK_THROWS_AS(Ranks(0, 1, nullptr), invalid_argument);
  Ranks ranks(0, 1, nothing);
  CHECK_THROWS_WITH_AS(ranks.set_share(-0.5), "lazyllm: Ranks: share -0.5 is out of range 0 to 1", invalid_argument);
  CHECK_THROWS_WITH_AS(ranks.set_share(1.5), "lazyllm: Ranks: share 1.5 is out of range 0 to 1", invalid_argument);
}

TEST_CASE("ranks: each rank fails in each layer; sequences are as before, and the same step runs again") {
  constexpr Index count = 3;
  for (const bool in_scores : {false, true}) {
    for (Index failing = 0; failing < count; ++failing) {
      for (Index layer = 0; layer < SplitEngine::layers; ++layer) {
        if (in_scores && layer != 1 && layer != 3) continue;  // where tokens are ranked
        CAPTURE(in_scores);
        CAPTURE(failing);
        CAPTURE(layer);
        ThreadRanks threads(count);
        threads.run([&](Index rank) {
          Ranks ranks(rank, count, threads.all_reduce(rank));
          SplitEngine engine(&ranks, rank * 2, 2);
          SplitEngine alone;
          const auto pruner = engine.pruner(parse_policy("2:0.5,4:0.5", SplitEngine::layers), {});
          const auto pruner_alone = alone.pruner(parse_policy("2:0.5,4:0.5", SplitEngine::layers), {});
          auto sequence = SplitEngine::sequence(), expected = SplitEngine::sequence();
          const auto step = [](SplitEngine& one, auto& of, const auto& by, Index tokens) {
            const SplitEngine::Step::Entry entry{&of, &by, tokens};
            return one.run({&entry, 1});
          };
          step(engine, sequence, pruner, 40);
          step(alone, expected, pruner_alone, 40);
          for (const Index tokens : {1, 20}) {
            const SplitEngine::Hook fails = [&](Index now) {
              if (rank == failing && now == layer) throw std::runtime_error("layer " + std::to_string(now));
            };
            (in_scores ? engine.score_hook : engine.hook) = fails;
            const std::vector<Depth> before(sequence.depths().begin(), sequence.depths().end());
            CHECK_THROWS_WITH_AS(
                step(engine, sequence, pruner, tokens),
                ("lazyllm: rank " + std::to_string(failing) + " of 3: layer " + std::to_string(layer)).c_str(),
                rank_error);
            CHECK(std::vector<Depth>(sequence.depths().begin(), sequence.depths().end()) == before);
            engine.hook = engine.score_hook = nullptr;
            CHECK(step(engine, sequence, pruner, tokens) == step(alone, expected, pruner_alone, tokens));
          }
        });
      }
    }
  }
}
