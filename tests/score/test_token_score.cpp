#include <doctest/doctest.h>

#include <algorithm>
#include <span>
#include <stdexcept>
#include <vector>

#include "lazyllm/lazyllm.hpp"
#include "support/scripted_engine.hpp"
#include "support/tiny_engine.hpp"

/// Scores of a user's own.
using namespace lazyllm;
using namespace lazyllm::test;

namespace {

/// The least that a score is: the highest score goes to every third position.
struct EveryThird {
  static constexpr Index last_queries = 1;

  template <class Context, class Block>
  static void score(Context&, Block&, const LayerPlan& plan, std::span<const ScoreWindow> windows,
                    std::span<const EveryThird* const>) {
    for (const ScoreWindow& window : windows) {
      const Positions keys = plan.sequence(window.sequence).keys;
      for (std::size_t i = 0; i < keys.size(); ++i) window.scores[i] = keys[i] % 3 == 0 ? 1 : 0.5F;
    }
  }
};

/// All options; counts how often it is asked. Where heads are spread over ranks, their scores would be added here.
struct OfTwoRanks {
  Reduce over_heads = Reduce::mean;
  Index last_queries = 1;
  Reduce over_rows = Reduce::mean;
  bool over_layers = false;
  Index pooling = 1;
  int* calls = nullptr;

  void check() const {
    if (last_queries > 4) throw std::domain_error("too many");
  }

  template <class Context, class Block>
  static void score(Context& context, Block& block, const LayerPlan& plan, std::span<const ScoreWindow> windows,
                    std::span<const OfTwoRanks* const> options) {
    score_by_attention(context, block, plan, windows);
    for (const ScoreWindow& window : windows) {
      for (float& score : window.scores) score *= 2;  // exact: the ranking stays
    }
    for (const OfTwoRanks* each : options) ++*each->calls;
  }
};

/// A verb may ask for a backend and for what a block offers, and return what it likes.
struct Constrained {
  static constexpr Index last_queries = 1;

  template <Backend Context, ExposesQueriesAndKeys Block>
  requires Attention<Block, Context, float>
  static auto score(Context& context, Block& block, const LayerPlan& plan, std::span<const ScoreWindow> windows,
                    std::span<const Constrained* const>) {
    score_by_attention(context, block, plan, windows);
    return block.queries(plan).head_dim;
  }
};
static_assert(TokenScore<Constrained>);

struct WithoutWindow {
  template <class Context, class Block>
  static void score(Context&, Block&, const LayerPlan&, std::span<const ScoreWindow>,
                    std::span<const WithoutWindow* const>) {}
};
struct WithoutVerb {
  Index last_queries = 1;
};
struct OfSomethingElse : WithoutVerb {
  template <class Context, class Block>
  static void score(Context&, Block&, const LayerPlan&, std::span<float>) {}
};
struct WindowAsText : WithoutWindow {
  const char* last_queries = "";
};
static_assert(TokenScore<EveryThird> && TokenScore<OfTwoRanks> && TokenScore<AttentionScore>);
static_assert(!TokenScore<WithoutWindow> && !TokenScore<WithoutVerb> && !TokenScore<OfSomethingElse> &&
              !TokenScore<WindowAsText> && !TokenScore<int>);

}  // namespace

TEST_CASE("score: the window is the sequence's own rows among the last positions") {
  detail::PlanBuilder builder;
  builder.clear();
  builder.append_keys(std::vector<Position>{0, 1, 2});
  for (const Position row : {1, 2}) builder.append_row(row);
  builder.finish_sequence(3, 1);
  // Positions 0 to 4 are history, of which 1 is revived; 5 to 9 are new, of which 7 has been pruned.
  builder.append_keys(std::vector<Position>{0, 1, 3, 5, 6, 8, 9});
  for (const Position row : {1, 5, 6, 8, 9}) builder.append_row(row);
  builder.finish_sequence(10, 1);
  const LayerPlan plan = builder.layer(0, 2);
  const auto window = [&](Index last_queries) {
    return lazyllm::detail::score_window(
        AttentionScore{.over_heads = Reduce::max, .last_queries = last_queries, .over_rows = Reduce::max}, plan, 1, 5);
  };
  CHECK(window(1).first_row == 6);
  CHECK(window(1).rows == 1);
  CHECK(window(2).rows == 2);
  CHECK(window(3).rows == 2);  // 7 has been pruned
  CHECK(window(4).rows == 3);
  CHECK(window(9).first_row == 3);
  CHECK(window(9).rows == 4);  // the revived one does not score
  CHECK(window(9).sequence == 1);
  CHECK(window(9).over_heads == Reduce::max);
  CHECK(window(9).over_rows == Reduce::max);
  CHECK(lazyllm::detail::score_window(EveryThird(), plan, 0, 2).over_heads == Reduce::mean);
  CHECK(lazyllm::detail::score_window(EveryThird(), plan, 0, 2).over_rows == Reduce::mean);
}

/// Notes the sequences of each call.
struct NotingScores : ScriptedAttention {
  std::vector<std::vector<Index>>* calls;

  void token_scores(cpu::Context& context, const LayerPlan& plan, std::span<const ScoreWindow> windows) {
    auto& sequences = calls->emplace_back();
    for (const ScoreWindow& window : windows) sequences.push_back(window.sequence);
    ScriptedAttention::token_scores(context, plan, windows);
  }
};

TEST_CASE("score: a block that scores is called once in a layer, for all sequences that rank there") {
  using Engine = ScriptedEngine<>;
  Engine engine(4);
  std::vector<std::vector<Index>> calls;
  const Engine::Pruner early(KeepRatio(Schedule{{1, 0.5}})), both(KeepRatio(Schedule{{1, 0.5}, {2, 0.5}})),
      never{KeepAll()};
  Engine::Sequence a = engine.sequence(), b = engine.sequence(), c = engine.sequence();
  engine.begin(std::vector<Engine::Entry>{{&a, &early, 8}, {&b, &never, 5}, {&c, &both, 6}});
  for (auto& layer : engine.layers) {
    LazyDecoderLayer<NotingScores, ScriptedFeedForward> noting({layer.attention(), &calls}, layer.feed_forward());
    noting.forward(engine.context, engine.step);
  }
  engine.step.end();
  CHECK(calls == std::vector<std::vector<Index>>{{0, 2}, {2}});
  CHECK(engine.script->rows_right);
}

TEST_CASE("score: one of the user's own without options ranks the tokens") {
  TinyEngine<LibraryScores, EveryThird> engine;
  auto request = engine.request();
  const TokenPruner<AnyPolicy, EveryThird> pruner(KeepRatio(Schedule{{2, 0.4}}));
  const auto result = engine.run({{&request, &pruner, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}});
  CHECK(result.front().active[2] == std::vector<Position>{0, 3, 6, 9});
}

TEST_CASE("score: one of the user's own has all options of the library's") {
  const std::vector<Index> tokens{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3};
  for (const AttentionScore& options : {AttentionScore{}, AttentionScore{.last_queries = 4, .over_rows = Reduce::max},
                                        AttentionScore{.over_layers = true}, AttentionScore{.pooling = 5},
                                        AttentionScore{Reduce::max, 3, Reduce::mean, true, 3}}) {
    TinyEngine<LibraryScores> library;
    TinyEngine<LibraryScores, OfTwoRanks> own;
    auto a = library.request();
    auto b = own.request();
    int calls = 0;
    const AnyPolicy policy = KeepRatio(Schedule{{1, 0.6}, {3, 0.5}});
    const TokenPruner expected(policy, options);
    const TokenPruner pruner(policy, OfTwoRanks{options.over_heads, options.last_queries, options.over_rows,
                                                options.over_layers, options.pooling, &calls});
    const auto found = own.run({{&b, &pruner, tokens}});
    const auto right = library.run({{&a, &expected, tokens}});
    CHECK(found.front().active == right.front().active);
    CHECK(found.front().logits == right.front().logits);
    CHECK(calls == (options.over_layers ? 3 : 2));  // layers after which it is asked
  }
}

TEST_CASE("score: one of the user's own is checked when a pruner is made") {
  int calls = 0;
  CHECK_THROWS_AS(TokenPruner(KeepAll(), OfTwoRanks{.last_queries = 5, .calls = &calls}), std::domain_error);
  CHECK_NOTHROW(TokenPruner(KeepAll(), OfTwoRanks{.last_queries = 4, .calls = &calls}));
}
