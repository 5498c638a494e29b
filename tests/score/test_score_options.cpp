#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lazyllm/lazyllm.hpp"
#include "support/tiny_engine.hpp"

using namespace lazyllm;
using namespace lazyllm::test;

namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// The scores of the only sequence of a plan.
template <class Block>
void fill(const AttentionScore& score, cpu::Context& context, Block& block, const LayerPlan& plan, Index new_tokens,
          std::span<float> scores) {
  const ScoreWindow window = lazyllm::detail::score_window(score, plan, 0, new_tokens, scores);
  const AttentionScore* const options = &score;
  AttentionScore::score(context, block, plan, std::span(&window, 1), std::span(&options, 1));
}

/// A block of one sequence with keys and queries of zeros, and with heads and strides that a test sets.
struct FreeBlock {
  std::vector<float> zeros = std::vector<float>(4096);
  QueryRows<float> query_rows{zeros.data(), 64, 8, 8, 8, 1};
  ContiguousKeys<float> contiguous{zeros.data(), 64, 8, 4};

  void attend(cpu::Context&, const LayerPlan&, RowsView<float>) {}
  QueryRows<float> queries(const LayerPlan&) const { return query_rows; }
  ContiguousKeys<float> key_view(const LayerPlan&, Index) const { return contiguous; }
};

struct FreePagedBlock {
  std::vector<std::int32_t> table = std::vector<std::int32_t>(8);
  FreeBlock block = {};
  PagedKeys<float> pages{block.zeros.data(), table.data(), 4, 256, 64, 8, 4};

  void attend(cpu::Context&, const LayerPlan&, RowsView<float>) {}
  QueryRows<float> queries(const LayerPlan&) const { return block.query_rows; }
  PagedKeys<float> key_view(const LayerPlan&, Index) const { return pages; }
};

/// What the scoring of three tokens throws.
template <class Block>
std::string refused(Block& block) {
  cpu::Context context;
  DensePlan plan;
  plan.start(0, 3);
  std::vector<float> scores(3);
  try {
    fill({}, context, block, plan.layer(0, 2), 3, scores);
  } catch (const invalid_argument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("score options out of range are refused by name") {
  CHECK_THROWS_WITH_AS(AttentionScore{.last_queries = 0}.check(),
                       "lazyllm: AttentionScore: last_queries 0 is out of range, at least 1", invalid_argument);
  CHECK_THROWS_WITH_AS(AttentionScore{.pooling = 4}.check(),
                       "lazyllm: AttentionScore: pooling 4 is out of range: odd and at least 1", invalid_argument);
  CHECK_THROWS_AS(AttentionScore{.pooling = -1}.check(), invalid_argument);
  CHECK_NOTHROW(AttentionScore{.last_queries = 9, .pooling = 5}.check());
}

TEST_CASE("AttentionScore: the window takes the step's own rows among the last positions, mean or max") {
  // Positions 0-4 are history; 5-9 are new, of which 7 has been pruned.
  const TinyModel model({.layers = 2}, 1);
  TinyCache<float> cache(model.shape(), 10);
  const TinyBatch<float> batch{&cache};
  const std::vector<Position> keys{0, 2, 3, 5, 6, 8, 9};
  const std::vector<Position> rows{5, 6, 8, 9};
  detail::PlanBuilder builder;
  builder.clear();
  for (const Position row : rows) builder.append_row(row);
  builder.append_keys(keys);
  builder.finish_sequence(10, 1);
  const LayerPlan plan = builder.layer(0, 2);

  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const Index hidden_size = model.shape().hidden_size();
  for (const Position key : keys) {
    std::generate_n(cache.key(0, key), hidden_size / 2, [&] { return normal(random); });
    std::generate_n(cache.value(0, key), hidden_size / 2, [&] { return normal(random); });
  }
  std::vector<float> hidden(static_cast<std::size_t>(4 * hidden_size));
  for (float& value : hidden) value = normal(random);
  // Of each row, over the keys that it sees, 0 for the others.
  std::vector<Vector> probabilities;  // mean over the heads
  std::vector<Vector> highest;        // of the heads
  for (Index r = 0; r < 4; ++r) {
    const Position row = rows[static_cast<std::size_t>(r)];
    const auto qkv = model.project(0, row, hidden.data() + r * hidden_size);
    std::ranges::copy(qkv.key, cache.key(0, row));
    std::vector<const float*> visible;
    for (const Position key : keys) {
      if (key <= row) visible.push_back(cache.key(0, key));
    }
    probabilities.emplace_back(keys.size(), 0.0F);
    highest.emplace_back(keys.size(), 0.0F);
    const Vector each = model.probabilities(qkv.query, visible);
    for (std::size_t i = 0; i < each.size(); ++i) {
      float& mean = probabilities.back()[i % visible.size()];
      float& most = highest.back()[i % visible.size()];
      mean += each[i] / static_cast<float>(model.shape().heads);
      most = std::max(most, each[i]);
    }
  }
  cpu::Context context;
  TinyAttention<float> block{&model, 0, &batch};
  block.attend(context, plan, RowsView<float>(hidden.data(), 4, hidden_size));

  for (const auto& [heads, of_rows] : {std::pair{Reduce::mean, &probabilities}, std::pair{Reduce::max, &highest}}) {
    for (Index window = 1; window <= 12; ++window) {
      for (const Reduce reduce : {Reduce::mean, Reduce::max}) {
        CAPTURE(window);
        std::vector<float> scores(keys.size(), not_a_number);
        fill({.over_heads = heads, .last_queries = window, .over_rows = reduce}, context, block, plan, 5, scores);
        for (std::size_t i = 0; i < keys.size(); ++i) {
          float expected = 0;
          float taken = 0;
          for (std::size_t r = 0; r < 4; ++r) {
            if (rows[r] < 10 - window) continue;
            const float of_row = (*of_rows)[r][i];
            expected = reduce == Reduce::max ? std::max(expected, of_row) : expected + of_row;
            ++taken;
          }
          if (reduce == Reduce::mean) expected /= taken;
          CHECK(scores[i] == doctest::Approx(expected).epsilon(1e-4));
        }
      }
    }
  }
}

TEST_CASE("AttentionScore: query heads that are no multiple of key heads are refused with both numbers") {
  FreeBlock block;
  CHECK(refused(block) == "nothing was thrown");
  const auto with = [&](Index heads, Index kv_heads) {
    block.query_rows.heads = heads;
    block.contiguous.kv_heads = kv_heads;
    return refused(block);
  };
  const std::string rule = " key heads: both must be at least 1, the first a multiple of the second";
  CHECK(with(6, 4) == "lazyllm: attention scores: 6 query heads on 4" + rule);
  CHECK(with(4, 8) == "lazyllm: attention scores: 4 query heads on 8" + rule);
  CHECK(with(8, 0) == "lazyllm: attention scores: 8 query heads on 0" + rule);
  CHECK(with(0, 4) == "lazyllm: attention scores: 0 query heads on 4" + rule);
  CHECK(with(8, -2) == "lazyllm: attention scores: 8 query heads on -2" + rule);
  CHECK(with(-8, 2) == "lazyllm: attention scores: -8 query heads on 2" + rule);
  CHECK(with(8, 8) == "nothing was thrown");
}

TEST_CASE("AttentionScore: sizes and strides that cannot be are refused by name") {
  const auto with = [](const std::function<void(FreeBlock&)>& change) {
    FreeBlock block;
    change(block);
    return refused(block);
  };
  const std::string where = "lazyllm: attention scores: ";
  CHECK(with([](FreeBlock& b) { b.query_rows.head_dim = 0; }) == where + "head_dim 0 is out of range, at least 1");
  CHECK(with([](FreeBlock& b) { b.query_rows.row_stride = -64; }) ==
        where + "row_stride of the queries -64 is out of range, at least 0");
  CHECK(with([](FreeBlock& b) { b.query_rows.head_stride = -1; }) ==
        where + "head_stride of the queries -1 is out of range, at least 1");
  CHECK(with([](FreeBlock& b) { b.query_rows.head_stride = 0; }) ==
        where + "head_stride of the queries 0 is out of range, at least 1");
  CHECK(with([](FreeBlock& b) {
          b.query_rows.heads = b.contiguous.kv_heads = 1;
          b.query_rows.row_stride = b.query_rows.head_stride = b.contiguous.head_stride = 0;
        }) == "nothing was thrown");
  for (const float scale : {0.0F, -1.0F, not_a_number, std::numeric_limits<float>::infinity()}) {
    CHECK(with([scale](FreeBlock& b) { b.query_rows.scale = scale; }).find("scale ") != std::string::npos);
  }
  CHECK(with([](FreeBlock& b) { b.query_rows.scale = 0; }) ==
        where + "scale 0 of the queries is out of range: finite and above 0");
  CHECK(with([](FreeBlock& b) { b.contiguous.position_stride = -64; }) ==
        where + "position_stride of K -64 is out of range, at least 1");
  CHECK(with([](FreeBlock& b) { b.contiguous.head_stride = -8; }) ==
        where + "head_stride of K -8 is out of range, at least 1");
  const auto paged = [](const std::function<void(PagedKeys<float>&)>& change) {
    FreePagedBlock block;
    change(block.pages);
    return refused(block);
  };
  CHECK(paged([](PagedKeys<float>&) {}) == "nothing was thrown");
  CHECK(paged([](PagedKeys<float>& k) { k.page_stride = -1; }) ==
        where + "page_stride of K -1 is out of range, at least 1");
  CHECK(paged([](PagedKeys<float>& k) { k.page_size = 0; }) == where + "page_size 0 of K is out of range, at least 1");
  CHECK(paged([](PagedKeys<float>& k) { k.kv_heads = 3; }).find("8 query heads on 3") != std::string::npos);
}

TEST_CASE("AttentionScore: an engine that scores windows itself gets what the library's scoring gives") {
  std::mt19937 random(6);
  const Schedule schedule{{1, 0.7}, {2, 0.6}, {4, 0.5}};
  for (const Index last_queries : {1, 3, 8}) {
    for (const auto& reduced :
         {std::pair{Reduce::mean, Reduce::mean}, {Reduce::mean, Reduce::max}, {Reduce::max, Reduce::mean}}) {
      const Reduce heads = reduced.first;
      const Reduce reduce = reduced.second;
      for (const bool over_layers : {false, true}) {
        for (const Index pooling : {1, 5}) {
          for (const AnyPolicy& policy : {AnyPolicy(KeepRatio(schedule)), AnyPolicy(KeepTopP(schedule))}) {
            const AttentionScore score{heads, last_queries, reduce, over_layers, pooling};
            TinyEngine<LibraryScores> library;
            TinyEngine<EngineScores> engine;
            Index windows = 0;
            engine.hooks.scored = [&](const LayerPlan& plan, const ScoreWindow& window) {
              CHECK(window.scores.size() == plan.sequence(window.sequence).keys.size());
              CHECK(window.rows >= 1);
              CHECK(window.rows <= last_queries);
              CHECK(window.over_heads == heads);
              CHECK(window.over_rows == reduce);
              windows += window.rows > 1;
            };
            auto a = library.request();
            auto b = engine.request();
            const TokenPruner pruner(policy, score);
            for (const std::size_t count : {20U, 1U, 7U, 1U}) {
              std::vector<Index> tokens(count);
              for (Index& token : tokens) token = static_cast<Index>(random() % 31);
              const auto expected = library.run({{&a, &pruner, tokens}});
              const auto found = engine.run({{&b, &pruner, tokens}});
              CHECK(found.front().active == expected.front().active);
              CHECK(found.front().logits == expected.front().logits);
            }
            CHECK((windows > 0) == (last_queries > 1));
          }
        }
      }
    }
  }
}

TEST_CASE("AttentionScore: several rows need a stride, and the keys of every sequence are checked") {
  struct SecondIsWrong : FreeBlock {
    ContiguousKeys<float> key_view(const LayerPlan&, Index s) const {
      ContiguousKeys<float> keys = contiguous;
      if (s == 1) keys.kv_heads = 3;
      return keys;
    }
  };
  cpu::Context context;
  DensePlan plan;
  plan.start(std::vector<DensePlan::Extent>{{0, 3}, {0, 2}});
  const LayerPlan layer = plan.layer(0, 2);
  std::vector<float> out(5);
  const auto score = [&](auto& block, const AttentionScore& by) {
    const ScoreWindow windows[] = {lazyllm::detail::score_window(by, layer, 0, 3, std::span(out).first(3)),
                                   lazyllm::detail::score_window(by, layer, 1, 2, std::span(out).last(2))};
    score_by_attention(context, block, layer, std::span<const ScoreWindow>(windows));
  };
  FreeBlock block;
  block.query_rows.row_stride = 0;
  const std::string too_small = "lazyllm: attention scores: row_stride of the queries 0 is out of range, at least 1";
  CHECK_THROWS_WITH_AS(score(block, AttentionScore()), too_small.c_str(), invalid_argument);
  DensePlan alone;
  alone.start(std::vector<DensePlan::Extent>{{0, 3}});
  const LayerPlan one = alone.layer(0, 2);
  const auto score_alone = [&](const AttentionScore& by, std::size_t times) {
    const std::vector<ScoreWindow> windows(times,
                                           lazyllm::detail::score_window(by, one, 0, 3, std::span(out).first(3)));
    score_by_attention(context, block, one, std::span<const ScoreWindow>(windows));
  };
  CHECK_NOTHROW(score_alone(AttentionScore(), 1));
  CHECK_THROWS_WITH_AS(score_alone(AttentionScore{.last_queries = 2}, 1), too_small.c_str(), invalid_argument);
  CHECK_THROWS_WITH_AS(score_alone(AttentionScore(), 2), too_small.c_str(), invalid_argument);
  SecondIsWrong second;
  CHECK_THROWS_WITH_AS(score(second, AttentionScore()), doctest::Contains("8 query heads on 3"), invalid_argument);
}
