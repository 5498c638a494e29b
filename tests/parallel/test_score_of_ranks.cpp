#include <doctest/doctest.h>

#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lazyllm/lazyllm.hpp"
#include "support/split_engine.hpp"
#include "support/thread_ranks.hpp"

using namespace lazyllm;
using namespace lazyllm::test;

namespace {

using Active = std::vector<std::vector<Position>>;

/// The first key head of each rank; uneven where the heads do not divide.
Index first_head(Index rank, Index count) { return rank * SplitEngine::kv_heads / count; }

struct Case {
  const char* policy;
  const char* score;
  Index max_revived = Selection::unlimited;
};

/// Two prompts, in one step and in chunks, then decode steps: what is active in every layer.
std::vector<Active> run_case(SplitEngine& engine, const Case& wanted) {
  AnyPolicy policy = parse_policy(wanted.policy, SplitEngine::layers);
  if (wanted.max_revived != Selection::unlimited) policy = ReviveAtMost<AnyPolicy>{policy, wanted.max_revived};
  const auto pruner = engine.pruner(policy, parse_score(wanted.score));
  auto first = SplitEngine::sequence();
  auto second = SplitEngine::sequence();
  std::vector<Active> active;
  using Entry = SplitEngine::Step::Entry;
  const auto run = [&](std::vector<Entry> entries) { active.push_back(engine.run(entries)); };
  run({{.sequence = &first, .pruner = &pruner, .new_tokens = 60},
       {.sequence = &second, .pruner = &pruner, .new_tokens = 33, .more = true}});
  run({{.sequence = &first, .pruner = &pruner}, {.sequence = &second, .pruner = &pruner, .new_tokens = 17}});
  auto fork = first.fork(engine.context);
  for (int step = 0; step < 3; ++step) {
    run({{.sequence = &first, .pruner = &pruner},
         {.sequence = &second, .pruner = &pruner},
         {.sequence = &fork, .pruner = &pruner}});
  }
  return active;
}

}  // namespace

TEST_CASE("scores of ranks: the kept tokens are those of one rank, on all ranks") {
  for (const Case& wanted : {Case{"2:0.5,4:0.5", "last"}, Case{"1:0.4", "mean:8"}, Case{"1:0.4,3:0.5", "max:8"},
                             Case{"2:0.5", "mean:8+heads:max+pool:3"}, Case{"2:0.5,3:0.6", "max:4+heads:max"},
                             Case{"2:0.5,4:0.5", "last+layers", 2}, Case{"top-p@2:0.7", "mean:4+layers"}}) {
    CAPTURE(wanted.policy);
    CAPTURE(wanted.score);
    SplitEngine alone;
    const std::vector<Active> expected = run_case(alone, wanted);
    for (const Index count : {1, 2, 4}) {
      CAPTURE(count);
      ThreadRanks threads(count);
      std::vector<std::vector<Active>> found(static_cast<std::size_t>(count));
      threads.run([&](Index rank) {
        Ranks ranks(rank, count, threads.all_reduce(rank));
        const Index first = first_head(rank, count);
        SplitEngine engine(&ranks, first, first_head(rank + 1, count) - first);
        found[static_cast<std::size_t>(rank)] = run_case(engine, wanted);
      });
      for (const auto& active : found) CHECK(active == expected);
    }
  }
}

TEST_CASE("scores of ranks: without a collective the ranks keep different tokens") {
  const Case wanted{"2:0.5,4:0.5", "last"};
  SplitEngine left(nullptr, 0, 3), right(nullptr, 3, 3);
  CHECK(run_case(left, wanted) != run_case(right, wanted));
}

TEST_CASE("scores of ranks: sequences of one step with different ranks are refused") {
  ThreadRanks threads(1);
  threads.run([&](Index rank) {
    Ranks ranks(rank, 1, threads.all_reduce(rank));
    SplitEngine engine(&ranks);
    const SplitEngine::Pruner split = engine.pruner(parse_policy("2:0.5", SplitEngine::layers), {});
    const SplitEngine::Pruner alone(split.policy(), {split.score(), nullptr});
    auto first = SplitEngine::sequence(), second = SplitEngine::sequence();
    for (const auto& [one, other] : {std::pair(&split, &alone), std::pair(&alone, &split)}) {
      const SplitEngine::Step::Entry entries[] = {{&first, one, 30}, {&second, other, 30}};
      CHECK_THROWS_WITH_AS(engine.run(entries), "lazyllm: ScoreOfRanks: the sequences of one step have different ranks",
                           invalid_argument);
      CHECK(first.length() == 0);
      CHECK(second.length() == 0);
    }
  });
}

TEST_CASE("scores of ranks: a rank without a share is not asked") {
  ThreadRanks threads(2);
  const Case wanted{"2:0.5", "last"};
  SplitEngine alone;
  const std::vector<Active> expected = run_case(alone, wanted);
  threads.run([&](Index rank) {
    Ranks ranks(rank, 2, threads.all_reduce(rank));
    SplitEngine engine(&ranks);
    ranks.set_share(rank == 0 ? 0 : 1);
    if (rank == 0) engine.score_hook = [](Index) { throw std::runtime_error("was asked"); };
    CHECK(run_case(engine, wanted) == expected);
  });
}

TEST_CASE("scores of ranks: a score that is no number on one rank ends its entry on all") {
  for (const char* score : {"last", "mean:4+heads:max"}) {
    for (Index bad = 0; bad < 2; ++bad) {
      ThreadRanks threads(2);
      std::vector<Active> found(2);
      threads.run([&](Index rank) {
        Ranks ranks(rank, 2, threads.all_reduce(rank));
        SplitEngine engine(&ranks, rank * 3, 3);
        // A key that only the longer prompt has.
        if (rank == bad)
          engine.keys[static_cast<std::size_t>(SplitEngine::tokens + 50) * SplitEngine::key_width +
                      static_cast<std::size_t>(rank * 3 * SplitEngine::head_dim)] =
              std::numeric_limits<float>::quiet_NaN();
        const auto pruner = engine.pruner(parse_policy("2:0.5", SplitEngine::layers), parse_score(score));
        auto good = SplitEngine::sequence(), other = SplitEngine::sequence();
        const SplitEngine::Step::Entry entries[] = {{&other, &pruner, 60}, {&good, &pruner, 30}};
        found[static_cast<std::size_t>(rank)] = engine.run(entries);
        CHECK(engine.failures == 1);
        CHECK(other.length() == 0);
        CHECK(good.length() == 30);
      });
      CHECK(found[0] == found[1]);
    }
  }
}

TEST_CASE("scores of ranks: the rows of all sequences are scored in one call") {
  struct Block {
    void attend(cpu::Context&, const LayerPlan&, RowsView<float>) {}
    void token_scores(cpu::Context&, const LayerPlan& plan, std::span<const ScoreWindow> windows) {
      calls->push_back(std::ssize(windows));
      for (const ScoreWindow& window : windows) {  // the row that is asked for decides
        const Positions keys = plan.sequence(window.sequence).keys;
        for (std::size_t i = 0; i < keys.size(); ++i) {
          window.scores[i] = static_cast<float>((keys[i] * 3 + window.first_row) % 8) / 8;
        }
      }
    }
    std::vector<Index>* calls;
  };
  ThreadRanks threads(2);
  threads.run([&](Index rank) {
    Ranks ranks(rank, 2, threads.all_reduce(rank));
    using Pruner = TokenPruner<AnyPolicy, ScoreOfRanks>;
    const Pruner by_row(parse_policy("1:0.5", 2), {{.over_heads = Reduce::max, .last_queries = 3}, &ranks});
    const Pruner at_once(parse_policy("1:0.5", 2), {{.last_queries = 2}, &ranks});
    cpu::Sequence<float> a(2, 1), b(2, 1), c(2, 1);
    cpu::Context context;
    Step<cpu::Sequence<float>, Pruner> step;
    const std::vector<StepEntry<cpu::Sequence<float>, Pruner>> entries{
        {&a, &by_row, 8}, {&b, &at_once, 8}, {&c, &by_row, 6}};
    std::vector<Index> calls;
    LazyDecoderLayer layer(Block{&calls});
    step.begin(context, entries);
    layer.forward(context, step);
    // One for each way to reduce the heads.
    CHECK(calls == std::vector<Index>{1, 6});
    // Rows 5 to 7 give positions 0 to 7 the mean of (3 p + row) % 8.
    std::vector<std::pair<Index, Position>> sums;
    for (Position p = 0; p < 8; ++p) {
      Index sum = 0;
      for (Index row = 5; row < 8; ++row) sum += (3 * p + row) % 8;
      sums.emplace_back(p == 7 ? -100 : -sum, p);  // the last token stays
    }
    std::ranges::sort(sums);
    std::vector<Position> kept;
    for (const auto& [sum, p] : std::span(sums).first(4)) kept.push_back(p);
    std::ranges::sort(kept);
    const Positions keys = step.plan().sequence(0).keys;
    CHECK(std::vector<Position>(keys.begin(), keys.end()) == kept);
    step.abort();
  });
}

TEST_CASE("scores of ranks: a score out of range is refused on all ranks") {
  struct Block {
    void attend(cpu::Context&, const LayerPlan&, RowsView<float>) {}
    void token_scores(cpu::Context&, const LayerPlan&, std::span<const ScoreWindow> windows) {
      std::ranges::fill(windows.front().scores, value);
    }
    float value;
  };
  ThreadRanks threads(2);
  threads.run([&](Index rank) {
    Ranks ranks(rank, 2, threads.all_reduce(rank));
    const SplitEngine::Pruner pruner(parse_policy("1:0.5", 2), {{}, &ranks});
    cpu::Sequence<float> sequence(2, 1);
    cpu::Context context;
    SplitEngine::Step step;
    const auto run = [&](float value) {
      LazyDecoderLayer layer(Block{value});
      step.begin(context, sequence, pruner, 8);
      for (int i = 0; i < 2; ++i) layer.forward(context, step);
      step.end();
    };
    CHECK_THROWS_WITH_AS(run(rank == 1 ? 5000.0F : 1.0F),
                         "lazyllm: rank 1 of 2: ScoreOfRanks: score 5000 is out of range -4096 to 4096", rank_error);
    CHECK_THROWS_AS(run(rank == 1 ? -5000.0F : 1.0F), rank_error);
    CHECK(sequence.length() == 0);
    run(ScoreOfRanks::highest);
    CHECK(sequence.length() == 8);
  });
}

TEST_CASE("scores of ranks: of an equal split they are the scores of one process, not a multiple") {
  struct Block {
    void attend(cpu::Context&, const LayerPlan&, RowsView<float>) {}
    void token_scores(cpu::Context&, const LayerPlan&, std::span<const ScoreWindow> windows) {
      for (const ScoreWindow& window : windows) {
        for (std::size_t i = 0; i < window.scores.size(); ++i) {
          window.scores[i] = static_cast<float>(static_cast<Index>(i) + window.first_row) / 8;
        }
      }
    }
  };
  DensePlan dense;
  dense.start(0, 6);
  const LayerPlan plan = dense.layer(0, 2);
  ThreadRanks threads(2);
  threads.run([&](Index rank) {
    Ranks ranks(rank, 2, threads.all_reduce(rank));
    cpu::Context context;
    Block block;
    for (const Reduce heads : {Reduce::mean, Reduce::max}) {
      const ScoreOfRanks score{{.over_heads = heads, .last_queries = 3}, &ranks};
      const ScoreOfRanks* const options = &score;
      std::vector<float> scores(6);
      const ScoreWindow window = lazyllm::detail::score_window(score, plan, 0, 6, scores);
      ScoreOfRanks::score(context, block, plan, std::span(&window, 1), std::span(&options, 1));
      // At once the block is asked for row 3; one by one for 3, 4 and 5, whose mean is 4.
      for (std::size_t i = 0; i < 6; ++i) {
        CHECK(scores[i] == static_cast<float>(i + (heads == Reduce::max ? 4 : 3)) / 8);
      }
    }
  });
}
