#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "examples/llama/kernels/cpu/few_rows_attention.hpp"
#include "support.hpp"

namespace llama::test {
namespace {

using Bfloat16 = Eigen::bfloat16;

/// A few rows over some of the tokens of a random cache, NaN elsewhere.
struct Sample {
  AttentionShape shape;
  std::vector<Position> keys;
  std::vector<Position> key_limits;
  Matrix<Bfloat16> queries, cached_keys, cached_values;  // cache: [kv_heads * tokens x head_dim]
  Index tokens;

  Sample(Index heads, Index kv_heads, Index head_dim, Index tokens_, std::vector<Position> limits, unsigned percent)
      : shape{heads, kv_heads, head_dim, 1 / std::sqrt(static_cast<float>(head_dim))},
        key_limits(std::move(limits)),
        queries(random_matrix<Bfloat16>(std::ssize(key_limits), heads * head_dim, 1, 3)),
        cached_keys(random_matrix<Bfloat16>(kv_heads * tokens_, head_dim, 2, 3)),
        cached_values(random_matrix<Bfloat16>(kv_heads * tokens_, head_dim, 3)),
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
      cached_keys(row, i) = cached_values(row, i) = static_cast<Bfloat16>(value);
    }
  }

  KeyValues<Bfloat16> cache() const {
    return {cached_keys.values.data(), cached_values.values.data(), shape.head_dim, tokens * shape.head_dim};
  }

  Matrix<Bfloat16> run(int threads, Index first = 0, Index rows = -1) const {
    lazyllm::cpu::Context context(threads);
    if (rows < 0) rows = queries.rows - first;
    Matrix<Bfloat16> out(rows, queries.width, static_cast<Bfloat16>(NAN));
    few_rows_attention(context, shape, cache(), keys,
                       Positions(key_limits).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(rows)),
                       queries.view().subrows(first, rows), out.view());
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

bool available() {
  if (has_few_rows_attention({2, 1, 64})) return true;
  MESSAGE("skipped: this processor has no AVX512-BF16");
  return false;
}

TEST_CASE("a few rows attend as the reference does") {
  if (!available()) return;
  for (const Index head_dim : {64, 128}) {
    for (const Index group : {1, 3, 7}) {
      for (const Position rows : {1, 2, 3, 5, 17, 32}) {
        for (const Position step : {1, 9}) {
          CAPTURE(head_dim);
          CAPTURE(group);
          CAPTURE(rows);
          CAPTURE(step);
          const Sample sample(2 * group, 2, head_dim, 700, limits(rows, step), 60);
          const auto out = sample.run(2);
          check_close(out, sample.expected(), tolerance<Bfloat16>);
          CHECK(sample.run(1).same_bits(out));
          CHECK(sample.run(5).same_bits(out));
        }
      }
    }
  }
}

TEST_CASE("a few keys, and numbers around blocks and chunks") {
  if (!available()) return;
  for (const Index tokens : {1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 512, 513}) {
    CAPTURE(tokens);
    const Sample sample(3, 1, 64, tokens, {0}, 100);
    check_close(sample.run(2), sample.expected(), tolerance<Bfloat16>);
  }
}

TEST_CASE("a row's bits depend on its own keys only, however many rows there are") {
  if (!available()) return;
  Sample sample(6, 2, 64, 900, limits(23, 20), 80);
  const auto together = sample.run(2);
  const auto same = [&](const Matrix<Bfloat16>& alone, Index row) {
    return std::memcmp(alone.values.data(), together.view().row(row), alone.values.size() * sizeof(Bfloat16)) == 0;
  };
  for (const Index row : {0, 5, 11, 21, 22}) {
    CAPTURE(row);
    CHECK(same(sample.run(1, row, 1), row));
    CHECK(same(sample.run(3, row, std::min<Index>(7, 23 - row)), row));
    // Later tokens would show in the result if their weight were not exactly zero.
    Sample changed = sample;
    const auto visible = static_cast<std::size_t>(sample.key_limits[static_cast<std::size_t>(row)]);
    for (const Position token : std::span(sample.keys).subspan(visible)) {
      for (const Index head : {0, 1}) changed.fill(head * sample.tokens + token, 1e30f);
    }
    const auto out = changed.run(2, 0, row + 1);
    CHECK(std::memcmp(out.view().row(row), together.view().row(row),
                      static_cast<std::size_t>(out.width) * sizeof(Bfloat16)) == 0);
  }
}

TEST_CASE("a few rows agree with the kernel for many") {
  if (!available()) return;
  const Sample sample(6, 2, 64, 900, limits(20, 1), 80);
  lazyllm::cpu::Context context(2);
  Matrix<Bfloat16> many(20, sample.queries.width);
  attention<Bfloat16>(context, sample.shape, sample.cache(), sample.keys, sample.key_limits, sample.queries.view(),
                      many.view());
  Matrix<float> expected(20, many.width);
  for (std::size_t i = 0; i < many.values.size(); ++i) expected.values[i] = static_cast<float>(many.values[i]);
  check_close(sample.run(2), expected, tolerance<Bfloat16>);
}

TEST_CASE("what does not fit is refused") {
  if (!available()) return;
  const Sample good(4, 2, 64, 10, {-1, 0}, 100);
  const auto rejects = [&](const auto& change) {
    Sample bad = good;
    change(bad);
    CHECK_THROWS_AS(bad.run(1), std::invalid_argument);
  };
  rejects([](Sample& bad) { bad.shape.kv_heads = 3; });
  rejects([](Sample& bad) { bad.shape.head_dim = 32; });
  rejects([](Sample& bad) { bad.shape.heads = 8; });
  rejects([](Sample& bad) { bad.key_limits.back() = 11; });
  rejects([](Sample& bad) { bad.key_limits.front() = 0; });
  rejects([](Sample& bad) { std::swap(bad.key_limits[0], bad.key_limits[1]); });
}

}  // namespace
}  // namespace llama::test
