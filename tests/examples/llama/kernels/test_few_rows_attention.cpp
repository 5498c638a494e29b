#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "examples/llama/kernels/cpu/attention_blocks.hpp"
#include "examples/llama/kernels/cpu/few_rows_attention.hpp"
#include "support.hpp"
#include "tests/support/runs.hpp"

namespace llama::test {
namespace {

/// A few rows over some of the tokens of a random cache, NaN elsewhere.
template <class T>
struct FewRowsSample {
  AttentionShape shape;
  std::vector<Position> keys;
  std::vector<Position> key_limits;
  Matrix<T> queries, cached_keys, cached_values;  // cache: [kv_heads * tokens x head_dim]
  Index tokens;

  FewRowsSample(Index heads, Index kv_heads, Index head_dim, Index tokens_, std::vector<Position> limits,
                unsigned percent)
      : shape{heads, kv_heads, head_dim, 1 / std::sqrt(static_cast<float>(head_dim))},
        key_limits(std::move(limits)),
        queries(random_matrix<T>(std::ssize(key_limits), heads * head_dim, 1, 3)),
        cached_keys(random_matrix<T>(kv_heads * tokens_, head_dim, 2, 3)),
        cached_values(random_matrix<T>(kv_heads * tokens_, head_dim, 3)),
        tokens(tokens_) {
    std::mt19937 random(percent);
    for (Position token = 0; token < tokens; ++token) {
      if (random() % 100 < percent) {
        keys.push_back(token);
      } else {
        for (Index head = 0; head < kv_heads; ++head) fill(head * tokens + token, NAN);
      }
    }
    // Limits count from the last key, so that any number of keys will do.
    for (Position& limit : key_limits) limit += static_cast<Position>(keys.size());
  }

  void fill(Index row, float value) {
    for (Index i = 0; i < shape.head_dim; ++i) {
      cached_keys(row, i) = cached_values(row, i) = static_cast<T>(value);
    }
  }

  KeyValues<T> cache() const {
    return {cached_keys.values.data(), cached_values.values.data(), shape.head_dim, tokens * shape.head_dim};
  }

  Matrix<T> run(int threads, Index first = 0, Index rows = -1, FewRowsKernel kernel = FewRowsKernel::automatic) const {
    lazyllm::cpu::Context context(threads);
    if (rows < 0) rows = queries.rows - first;
    Matrix<T> out(rows, queries.width, static_cast<T>(NAN));
    few_rows_attention<T>(
        context,
        {shape, queries.view().subrows(first, rows), cache(), keys,
         Positions(key_limits).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(rows)), out.view()},
        kernel);
    return out;
  }

  /// softmax(scale Q K^T) V, the obvious way, in double.
  Matrix<double> expected() const {
    Matrix<double> out(queries.rows, queries.width);
    for (Index row = 0; row < queries.rows; ++row) {
      for (Index head = 0; head < shape.heads; ++head) {
        const Index at = head * shape.head_dim, first = head / (shape.heads / shape.kv_heads) * tokens;
        std::vector<double> weights(static_cast<std::size_t>(key_limits[static_cast<std::size_t>(row)]));
        for (std::size_t k = 0; k < weights.size(); ++k) {
          for (Index i = 0; i < shape.head_dim; ++i) {
            weights[k] += static_cast<double>(queries(row, at + i)) *
                          static_cast<double>(cached_keys(first + keys[k], i)) * static_cast<double>(shape.scale);
          }
        }
        const double largest = *std::ranges::max_element(weights);
        for (double& weight : weights) weight = std::exp(weight - largest);
        const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
        for (std::size_t k = 0; k < weights.size(); ++k) {
          for (Index i = 0; i < shape.head_dim; ++i) {
            out(row, at + i) += weights[k] / total * static_cast<double>(cached_values(first + keys[k], i));
          }
        }
      }
    }
    return out;
  }
};

/// Limits of `rows` rows: the last one sees all keys, each earlier one `step` fewer.
std::vector<Position> limits(Position rows, Position step) {
  std::vector<Position> made;
  for (Position row = rows; row-- > 0;) made.push_back(-row * step);
  return made;
}

TEST_CASE_TEMPLATE("a few rows attend as the reference does", T, float, Eigen::bfloat16) {
  unsigned number = 0;
  for (const Index head_dim : {6, 64, 80, 128}) {  // whole and broken vectors, and pairs of bfloat16
    for (const Index group : {1, 3, 7}) {
      for (const Position rows : {1, 2, 3, 5, 17, 32}) {
        for (const Position step : {1, 9}) {
          if (!lazyllm::test::runs_case(number++, 4 * 3 * 6 * 2)) continue;
          CAPTURE(head_dim);
          CAPTURE(group);
          CAPTURE(rows);
          CAPTURE(step);
          const FewRowsSample<T> sample(2 * group, 2, head_dim, 700, limits(rows, step), 60);
          const auto out = sample.run(2);
          const auto expected = sample.expected();
          check_close(out, expected, tolerance<T>);
          check_close(sample.run(2, 0, -1, FewRowsKernel::in_place), expected, tolerance<T>);
          CHECK(sample.run(1).same_bits(out));
          CHECK(sample.run(5).same_bits(out));
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("a few keys, and numbers around blocks and chunks", T, float, Eigen::bfloat16) {
  for (const Index tokens : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 512, 513}) {
    CAPTURE(tokens);
    const FewRowsSample<T> sample(11, 1, 64, tokens, {0}, 100);  // ten queries and more: K and V are copied
    for (const auto kernel : {FewRowsKernel::automatic, FewRowsKernel::in_place}) {
      check_close(sample.run(2, 0, -1, kernel), sample.expected(), tolerance<T>);
    }
  }
}

TEST_CASE_TEMPLATE("a row's bits depend on its own keys only, however many rows there are", T, float, Eigen::bfloat16) {
  // With ten query heads a key head K and V are copied for one row, too.
  const FewRowsSample<T> usual(20, 2, 64, 1400, limits(23, 20), 50), broken(6, 2, 38, 900, limits(23, 20), 80);
  const std::pair<const FewRowsSample<T>&, FewRowsKernel> cases[] = {
      {usual, FewRowsKernel::automatic}, {usual, FewRowsKernel::in_place}, {broken, FewRowsKernel::automatic}};
  for (const auto& one : cases) {
    const FewRowsSample<T>& sample = one.first;
    const FewRowsKernel kernel = one.second;
    CAPTURE(sample.shape.head_dim);
    const auto together = sample.run(2, 0, -1, kernel);
    const auto same = [&](const Matrix<T>& some, Index first, Index row) {
      return std::memcmp(some.view().row(row - first), together.view().row(row),
                         static_cast<std::size_t>(some.width) * sizeof(T)) == 0;
    };
    for (const Index row : {0, 5, 11, 21, 22}) {
      CAPTURE(row);
      for (const Index rows : {1, 2, 4, 7}) {
        const Index first = std::min(row, 23 - rows);
        CHECK(same(sample.run(3, first, rows, kernel), first, row));
      }
      // Later tokens would show in the result if their weight were not exactly zero.
      FewRowsSample<T> changed = sample;
      const auto visible = static_cast<std::size_t>(sample.key_limits[static_cast<std::size_t>(row)]);
      for (const Position token : std::span(sample.keys).subspan(visible)) {
        for (const Index head : {0, 1}) changed.fill(head * sample.tokens + token, 1e30f);
      }
      CHECK(same(changed.run(2, 0, row + 1, kernel), 0, row));
    }
  }
}

TEST_CASE_TEMPLATE("a few rows agree with the kernel for many", T, float, Eigen::bfloat16) {
  const FewRowsSample<T> sample(6, 2, 64, 900, limits(20, 1), 80);
  lazyllm::cpu::Context context(2);
  Matrix<T> many(20, sample.queries.width);
  attend_in_blocks<T>(
      context, {sample.shape, sample.queries.view(), sample.cache(), sample.keys, sample.key_limits, many.view()},
      BlockProducts::automatic);
  Matrix<float> expected(20, many.width);
  for (std::size_t i = 0; i < many.values.size(); ++i) expected.values[i] = static_cast<float>(many.values[i]);
  check_close(sample.run(2), expected, tolerance<T>);
}

}  // namespace
}  // namespace llama::test
