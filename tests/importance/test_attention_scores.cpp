#include <doctest/doctest.h>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "lazyllm/lazyllm.hpp"

using namespace lazyllm;

namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// Random queries, and random keys at the active positions with NaN everywhere else.
template <class T>
struct Problem {
  Problem(unsigned seed, Index heads_, Index kv_heads_, Index head_width_, Index tokens, Index window)
      : heads(heads_), kv_heads(kv_heads_), head_width(head_width_) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (Position p = 0; p < tokens; ++p) {
      if (p + window >= tokens || random() % 3 != 0) active.push_back(p);
    }
    for (Index i = 0; i < window; ++i) limits.push_back(static_cast<Position>(std::ssize(active) - window + 1 + i));
    query_data.assign(at((first_row + window) * heads * head_width), static_cast<T>(not_a_number));
    for (auto i = at(first_row * heads * head_width); i < query_data.size(); ++i) {
      query_data[i] = static_cast<T>(normal(random));
    }
    key_data.assign(at(tokens * kv_heads * head_width), static_cast<T>(not_a_number));
    for (const Position p : active) {
      for (Index i = 0; i < kv_heads * head_width; ++i) {
        key_data[at(p * kv_heads * head_width + i)] = static_cast<T>(2 * normal(random));
      }
    }
  }

  QueryRows<T> queries() const {
    return {query_data.data(), heads * head_width,
            head_width,        heads,
            head_width,        1 / std::sqrt(static_cast<float>(head_width))};
  }
  ContiguousKeys<T> keys() const { return {key_data.data(), kv_heads * head_width, head_width, kv_heads}; }

  template <class Keys>
  std::vector<float> scores(cpu::Context& context, const Keys& view, Reduce reduce) const {
    std::vector<float> result(active.size(), not_a_number);
    attention_scores(context, queries(), first_row, limits, view, active, reduce, result);
    return result;
  }

  /// Equation 1 in double precision: a softmax per row and head, its mean over the heads, then the window.
  std::vector<double> reference(Reduce reduce) const {
    std::vector<double> result(active.size(), 0);
    for (std::size_t row = 0; row < limits.size(); ++row) {
      std::vector<double> mean(active.size(), 0);
      for (Index head = 0; head < heads; ++head) {
        std::vector<double> weights;
        double sum = 0;
        for (Index i = 0; i < limits[row]; ++i) {
          double dot = 0;
          for (Index d = 0; d < head_width; ++d) {
            const Index q = ((first_row + static_cast<Index>(row)) * heads + head) * head_width + d;
            const Index k = (active[at(i)] * kv_heads + head / (heads / kv_heads)) * head_width + d;
            dot += static_cast<double>(static_cast<float>(query_data[at(q)])) *
                   static_cast<double>(static_cast<float>(key_data[at(k)]));
          }
          weights.push_back(std::exp(dot / std::sqrt(static_cast<double>(head_width))));
          sum += weights.back();
        }
        for (std::size_t i = 0; i < weights.size(); ++i) mean[i] += weights[i] / sum / static_cast<double>(heads);
      }
      for (std::size_t i = 0; i < mean.size(); ++i) {
        result[i] = reduce == Reduce::max ? std::max(result[i], mean[i])
                                          : result[i] + mean[i] / static_cast<double>(limits.size());
      }
    }
    return result;
  }

  void compare(const std::vector<float>& scores, Reduce reduce) const {
    const std::vector<double> expected = reference(reduce);
    double worst = 0;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const double error = std::abs(static_cast<double>(scores[i]) - expected[i]);
      worst = std::isnan(error) ? 1 : std::max(worst, error / (expected[i] + 1e-6));
    }
    CHECK(worst < 1e-5);
  }

  Index heads, kv_heads, head_width;
  Index first_row = 2;  // rows of other tokens of the batch stand before
  std::vector<Position> active, limits;
  std::vector<T> query_data, key_data;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE_TEMPLATE("attention scores: random queries and keys against a softmax in double precision", T, float,
                   Eigen::bfloat16, Eigen::half) {
  unsigned seed = 0;
  for (const Index group : {1, 2, 4, 8}) {
    for (const Index tokens : {1, 2, 7, 33, 600}) {
      for (const Index window : {1, 3}) {
        if (window > tokens) continue;
        for (const Reduce reduce : {Reduce::mean, Reduce::max}) {
          CAPTURE(group);
          CAPTURE(tokens);
          CAPTURE(window);
          cpu::Context context;
          const Problem<T> problem(++seed, 8, 8 / group, group == 2 ? 20 : 16, tokens, window);
          problem.compare(problem.scores(context, problem.keys(), reduce), reduce);
        }
      }
    }
  }
}

TEST_CASE("attention scores: a row's limit hides the later keys, whatever they hold") {
  cpu::Context context;
  Problem<float> problem(1, 4, 2, 8, 20, 1);
  problem.limits = {4};
  for (auto i = at(problem.active[4] * 16); i < problem.key_data.size(); ++i) problem.key_data[i] = not_a_number;
  const std::vector<float> scores = problem.scores(context, problem.keys(), Reduce::mean);
  problem.compare(scores, Reduce::mean);
  for (std::size_t i = 4; i < scores.size(); ++i) CHECK(scores[i] == 0);
}

TEST_CASE("attention scores: paged keys give the same bits as contiguous ones") {
  cpu::Context context;
  const Problem<float> problem(2, 8, 2, 16, 45, 2);
  constexpr Index page_size = 8, page_stride = page_size * 32 + 24;
  const std::vector<std::int32_t> table{4, 0, 5, 2, 1, 3};
  std::vector<float> pages(6 * page_stride, not_a_number);
  for (Index p = 0; p < 45; ++p) {
    std::copy_n(problem.key_data.begin() + p * 32, 32,
                pages.begin() + table[at(p / page_size)] * page_stride + p % page_size * 32);
  }
  const PagedKeys<float> keys{pages.data(), table.data(), page_size, page_stride, 32, 16, 2};
  static_assert(KeyView<PagedKeys<float>>);
  const std::vector<float> scores = problem.scores(context, keys, Reduce::mean);
  problem.compare(scores, Reduce::mean);
  CHECK(same_bits(scores, problem.scores(context, problem.keys(), Reduce::mean)));
}

TEST_CASE("attention scores: strides of queries and keys are honoured") {
  cpu::Context context;
  const Problem<float> problem(3, 4, 2, 8, 30, 2);
  // Head-major keys `[heads x tokens x width]` and queries with a gap after each head.
  std::vector<float> keys(problem.key_data.size()), queries(at(4 * 4 * 11), not_a_number);
  for (Index p = 0; p < 30; ++p) {
    for (Index head = 0; head < 2; ++head) {
      std::copy_n(problem.key_data.begin() + (p * 2 + head) * 8, 8, keys.begin() + (head * 30 + p) * 8);
    }
  }
  for (Index i = 0; i < 4 * 4; ++i) std::copy_n(problem.query_data.begin() + i * 8, 8, queries.begin() + i * 11);
  const QueryRows<float> query_rows{queries.data(), 44, 11, 4, 8, 1 / std::sqrt(8.0F)};
  std::vector<float> scores(problem.active.size(), not_a_number);
  attention_scores(context, query_rows, 2, problem.limits, ContiguousKeys<float>{keys.data(), 8, 240, 2},
                   problem.active, Reduce::max, scores);
  CHECK(same_bits(scores, problem.scores(context, problem.keys(), Reduce::max)));
}

TEST_CASE_TEMPLATE("attention scores: the same bits for any number of threads and any scratch memory", T, float,
                   Eigen::bfloat16) {
  for (const Index tokens : {5, 300, 1500}) {
    for (const Index window : {1, 4}) {
      const Problem<T> problem(static_cast<unsigned>(tokens), 8, 2, 16, tokens, window);
      cpu::Context one;
      const std::vector<float> expected = problem.scores(one, problem.keys(), Reduce::mean);
      for (const int threads : {1, 2, 3}) {
        cpu::Context context(threads);
        for (const Index earlier : {0, 1, 7, 16, 1001, 40000}) {
          (void)context.scratch(earlier);
          CHECK(same_bits(problem.scores(context, problem.keys(), Reduce::mean), expected));
        }
      }
    }
  }
}

TEST_CASE("attention scores: the same bits wherever queries and keys lie") {
  const Problem<float> problem(5, 4, 2, 20, 100, 2);
  cpu::Context context;
  const std::vector<float> expected = problem.scores(context, problem.keys(), Reduce::mean);
  for (std::size_t shift = 1; shift < 16; ++shift) {
    std::vector<float> keys(shift, 0), queries(shift, 0);
    keys.insert(keys.end(), problem.key_data.begin(), problem.key_data.end());
    queries.insert(queries.end(), problem.query_data.begin(), problem.query_data.end());
    QueryRows<float> query_rows = problem.queries();
    query_rows.data = queries.data() + shift;
    ContiguousKeys<float> view = problem.keys();
    view.data = keys.data() + shift;
    std::vector<float> scores(problem.active.size());
    attention_scores(context, query_rows, problem.first_row, problem.limits, view, problem.active, Reduce::mean,
                     scores);
    CHECK(same_bits(scores, expected));
  }
}

TEST_CASE("attention scores: a NaN or infinity in a key that is read is seen in the scores") {
  for (const float bad : {not_a_number, std::numeric_limits<float>::infinity()}) {
    for (const Reduce reduce : {Reduce::mean, Reduce::max}) {
      for (const Index tokens : {1, 3, 16, 40, 600}) {
        CAPTURE(tokens);
        cpu::Context context;
        Problem<float> problem(6, 4, 2, 8, tokens, 1);
        const Position position = problem.active[problem.active.size() / 2];
        std::fill_n(problem.key_data.begin() + position * 16, 16, bad);
        const std::vector<float> scores = problem.scores(context, problem.keys(), reduce);
        CHECK(std::ranges::any_of(scores, [](float score) { return !std::isfinite(score); }));
      }
    }
  }
}

TEST_CASE("attention scores: a NaN in one query of a window is not lost in the maximum") {
  for (std::size_t row = 0; row < 3; ++row) {
    cpu::Context context;
    Problem<float> problem(7, 4, 2, 8, 40, 3);
    problem.query_data[(2 + row) * 32] = not_a_number;
    const std::vector<float> scores = problem.scores(context, problem.keys(), Reduce::max);
    CHECK(std::ranges::any_of(scores, [](float score) { return std::isnan(score); }));
  }
}
