#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lazyllm/lazyllm.hpp"
#include "support/cpu_memory.hpp"
#include "support/tiny_model.hpp"

using namespace lazyllm;
using namespace lazyllm::test;

namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// The scores of the only sequence of a plan.
template <class Block>
void write_scores(const AttentionScore& score, cpu::Context& context, Block& block, const LayerPlan& plan,
                  Index new_tokens, std::span<float> scores) {
  ScoreRequest<AttentionScore> request{&score, 0, new_tokens, scores};
  AttentionScore::write(context, block, plan, std::span(&request, 1));
}

}  // namespace

TEST_CASE("pooling: the highest score in the window, which is cut off at both ends") {
  cpu::Context context;
  std::mt19937 random(1);
  for (const Index count : {1, 2, 5, 40}) {
    for (const Index width : {1, 3, 5, 9, 101}) {
      CAPTURE(count);
      CAPTURE(width);
      std::vector<float> scores(static_cast<std::size_t>(count));
      for (float& score : scores) score = static_cast<float>(random() % 1000);
      std::vector<float> expected(scores);
      for (Index i = 0; i < count; ++i) {
        for (Index j = 0; j < count; ++j) {
          if (2 * std::abs(i - j) >= width) continue;
          float& highest = expected[static_cast<std::size_t>(i)];
          highest = std::max(highest, scores[static_cast<std::size_t>(j)]);
        }
      }
      cpu::detail::pool_scores(context, width, scores);
      CHECK(scores == expected);
    }
  }
}

TEST_CASE("pooling: a NaN stays where it is") {
  cpu::Context context;
  for (std::size_t place = 0; place < 5; ++place) {
    std::vector<float> scores{5, 4, 3, 2, 1};
    scores[place] = not_a_number;
    cpu::detail::pool_scores(context, 3, scores);
    CHECK(std::isnan(scores[place]));
  }
}

TEST_CASE("accumulate: the first call sets the sums, later ones add to them; both lists hold the sums") {
  cpu::Context context;
  std::vector<float> sums{not_a_number, not_a_number};
  std::vector<float> scores{1, 2};
  accumulate_scores(context, scores, sums, true);
  CHECK(sums == std::vector<float>{1, 2});
  CHECK(scores == std::vector<float>{1, 2});
  scores = {10, 20};
  accumulate_scores(context, scores, sums, false);
  CHECK(sums == std::vector<float>{11, 22});
  CHECK(scores == std::vector<float>{11, 22});
  scores = {not_a_number, 1};
  accumulate_scores(context, scores, sums, false);
  CHECK(std::isnan(scores[0]));
  CHECK(scores[1] == 23);
}

TEST_CASE("random scores: in [0, 1), different for each position and seed, spread evenly") {
  std::set<float> seen;
  double sum = 0;
  bool in_range = true;
  for (const std::uint64_t seed : {0ULL, 1ULL, 77ULL}) {
    for (Position p = 0; p < 1000; ++p) {
      const float score = lazyllm::detail::random_score(seed, p);
      in_range &= score >= 0 && score < 1;
      seen.insert(score);
      sum += score;
    }
  }
  CHECK(in_range);
  CHECK(seen.size() > 2990);
  CHECK(sum / 3000 == doctest::Approx(0.5).epsilon(0.05));
  CHECK(lazyllm::detail::random_score(7, 3) == lazyllm::detail::random_score(7, 3));
}

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
  PlanBuilder buffers;
  buffers.clear();
  for (const Position row : rows) buffers.append_row(row);
  for (const Position key : keys) buffers.append_key(key);
  buffers.finish_sequence(10);
  const LayerPlan plan = buffers.layer(0, 2);

  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const Index width = model.shape().width();
  for (const Position key : keys) {
    std::generate_n(cache.key(0, key), width / 2, [&] { return normal(random); });
    std::generate_n(cache.value(0, key), width / 2, [&] { return normal(random); });
  }
  std::vector<float> hidden(static_cast<std::size_t>(4 * width));
  for (float& value : hidden) value = normal(random);
  std::vector<Vector> probabilities;  // of each row, over the keys that it sees, 0 for the others
  for (Index r = 0; r < 4; ++r) {
    const Position row = rows[static_cast<std::size_t>(r)];
    const auto qkv = model.project(0, row, hidden.data() + r * width);
    std::ranges::copy(qkv.key, cache.key(0, row));
    std::vector<const float*> visible;
    for (const Position key : keys) {
      if (key <= row) visible.push_back(cache.key(0, key));
    }
    probabilities.push_back(model.mean_probabilities(qkv.query, visible));
    probabilities.back().resize(keys.size(), 0);
  }
  cpu::Context context;
  TinyAttention<float> block{&model, 0, &batch};
  block.attend(context, plan, RowsView<float>(hidden.data(), 4, width));

  for (const Reduce reduce : {Reduce::mean, Reduce::max}) {
    for (Index window = 1; window <= 12; ++window) {
      CAPTURE(window);
      std::vector<float> scores(keys.size(), not_a_number);
      write_scores({.last_queries = window, .reduce = reduce}, context, block, plan, 5, scores);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        float expected = 0;
        float taken = 0;
        for (std::size_t r = 0; r < 4; ++r) {
          if (rows[r] < 10 - window) continue;
          expected = reduce == Reduce::max ? std::max(expected, probabilities[r][i]) : expected + probabilities[r][i];
          ++taken;
        }
        if (reduce == Reduce::mean) expected /= taken;
        CHECK(scores[i] == doctest::Approx(expected).epsilon(1e-4));
      }
    }
  }
}

TEST_CASE("AttentionScore: a block's own scores are taken as they are, and cannot be had for a window") {
  const TinyModel model({.layers = 2}, 2);
  TinyCache<float> cache(model.shape(), 6);
  const TinyBatch<float> batch{&cache};
  PlanBuilder buffers;
  buffers.start(std::vector<PlanBuilder::Extent>{{0, 6}});
  const LayerPlan plan = buffers.layer(0, 2);
  cpu::Context context;
  std::vector<float> hidden(static_cast<std::size_t>(6 * model.shape().width()), 0.5F);
  PlainlyScored<float, CpuMemory<>> block(&model, 0, &batch);
  block.attend(context, plan, RowsView<float>(hidden.data(), 6, model.shape().width()));
  std::vector<float> expected(6), scores(6);
  block.last_token_scores(context, plan, 0, expected);
  write_scores({}, context, block, plan, 6, scores);
  CHECK(scores == expected);
  CHECK_THROWS_WITH_AS(
      write_scores({.last_queries = 3}, context, block, plan, 6, scores),
      "lazyllm: AttentionScore: last_queries 3 is out of range: 1 for an attention block that computes "
      "its own scores",
      invalid_argument);
}

namespace {

/// An engine's own score that goes on from the library's, as where heads are spread over ranks.
struct OfTwoRanks : AttentionScore {
  template <class Context, class Block>
  static void write(Context& context, Block& block, const LayerPlan& plan,
                    std::span<ScoreRequest<OfTwoRanks>> requests) {
    AttentionScore::write(context, block, plan, requests);
    for (const auto& request : requests) {
      for (float& score : request.scores) score *= 2;
    }
  }
};
static_assert(TokenScore<OfTwoRanks>);

}  // namespace

TEST_CASE("AttentionScore: a score that derives from it goes on from its scores") {
  const TinyModel model({.layers = 2}, 2);
  TinyCache<float> cache(model.shape(), 6);
  const TinyBatch<float> batch{&cache};
  PlanBuilder buffers;
  buffers.start(0, 6);
  const LayerPlan plan = buffers.layer(0, 2);
  cpu::Context context;
  std::vector<float> hidden(static_cast<std::size_t>(6 * model.shape().width()), 0.5F);
  TinyAttention<float> block{&model, 0, &batch};
  block.attend(context, plan, RowsView<float>(hidden.data(), 6, model.shape().width()));
  std::vector<float> expected(6), scores(6);
  write_scores({.last_queries = 3}, context, block, plan, 6, expected);
  const OfTwoRanks options{{.last_queries = 3}};
  ScoreRequest<OfTwoRanks> request{&options, 0, 6, scores};
  OfTwoRanks::write(context, block, plan, std::span(&request, 1));
  for (float& score : expected) score *= 2;
  CHECK(scores == expected);
}

TEST_CASE("AttentionScore: reads what is written") {
  const auto equal = [](const AttentionScore& a, const AttentionScore& b) {
    return a.last_queries == b.last_queries && a.reduce == b.reduce && a.over_layers == b.over_layers &&
           a.pooling == b.pooling;
  };
  using enum Reduce;
  CHECK(equal(parse_score("last"), {}));
  CHECK(equal(parse_score("mean:8"), {.last_queries = 8}));
  CHECK(equal(parse_score("max:3+pool:5"), {.last_queries = 3, .reduce = max, .pooling = 5}));
  CHECK(equal(parse_score("last+layers"), {.over_layers = true}));
  CHECK(equal(parse_score("mean:2+pool:7+layers"), {.last_queries = 2, .over_layers = true, .pooling = 7}));
}

TEST_CASE("AttentionScore: text that is none is refused with the part at fault") {
  for (const auto& bad : std::vector<std::pair<std::string, std::string>>{{"", ""},
                                                                          {"first", "first"},
                                                                          {"mean", "mean"},
                                                                          {"mean:", "mean:"},
                                                                          {"mean:x", "mean:x"},
                                                                          {"max:3x", "max:3x"},
                                                                          {"pool:3", "pool:3"},
                                                                          {"last+pool:", "pool:"},
                                                                          {"last+", ""},
                                                                          {"last+max:3", "max:3"}}) {
    const std::string text = bad.first;
    const std::string part = bad.second;
    CAPTURE(text);
    const std::string message =
        "lazyllm: score '" + text + "': '" + part +
        "' is not understood; a score is last, mean:N or max:N, then any of +layers and +pool:W";
    CHECK_THROWS_WITH_AS(parse_score(text), message.c_str(), invalid_argument);
  }
  CHECK_THROWS_AS(parse_score("mean:0"), invalid_argument);
  CHECK_THROWS_AS(parse_score("last+pool:4"), invalid_argument);
}
