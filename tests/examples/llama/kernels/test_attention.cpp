#include <algorithm>
#include <numeric>

#ifdef LLAMA_HAS_ONEDNN
#include <omp.h>
#endif

#include "examples/llama/kernels/cpu/attention.hpp"
#include "examples/llama/kernels/cpu/block_products.hpp"
#include "examples/llama/library.hpp"
#include "support.hpp"

namespace llama::test {
namespace {

/// A random sequence: K and V of `tokens` tokens in one layer, NaN where a token is not among the keys.
template <class T>
struct Sample {
  AttentionShape shape;
  std::vector<Position> keys;
  std::vector<Position> key_limits;
  Matrix<T> queries;
  Matrix<T> cached_keys;
  Matrix<T> cached_values;

  KeyValues<T> cache() const {
    return {cached_keys.values.data(), cached_values.values.data(), cached_keys.width, shape.head_dim};
  }

  Matrix<T> run(int threads, BlockProducts products = BlockProducts::automatic) const {
    lazyllm::cpu::Context context(threads);
    Matrix<T> out(queries.rows, queries.width, static_cast<T>(NAN));
    attention(context, shape, cache(), keys, key_limits, queries.view(), out.view(), products);
    return out;
  }
};

template <class T>
Sample<T> sample(AttentionShape shape, Index tokens, std::vector<Position> keys, std::vector<Position> key_limits,
                 float size = 3) {
  const Index rows = std::ssize(key_limits);
  shape.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  Sample<T> made{shape,
                 std::move(keys),
                 std::move(key_limits),
                 random_matrix<T>(rows, shape.heads * shape.head_dim, 1, size),
                 random_matrix<T>(tokens, shape.kv_heads * shape.head_dim, 2, size),
                 random_matrix<T>(tokens, shape.kv_heads * shape.head_dim, 3)};
  for (Position token = 0; token < tokens; ++token) {
    if (std::binary_search(made.keys.begin(), made.keys.end(), token)) continue;
    for (Index i = 0; i < made.cached_keys.width; ++i) {
      made.cached_keys(token, i) = made.cached_values(token, i) = static_cast<T>(NAN);
    }
  }
  return made;
}

/// softmax(scale Q K^T) V, the obvious way, in double.
template <class T>
Matrix<double> reference(const Sample<T>& sample) {
  const AttentionShape& shape = sample.shape;
  Matrix<double> out(sample.queries.rows, sample.queries.width);
  for (Index row = 0; row < out.rows; ++row) {
    for (Index head = 0; head < shape.heads; ++head) {
      const Index query_at = head * shape.head_dim;
      const Index key_at = head / (shape.heads / shape.kv_heads) * shape.head_dim;
      const auto visible =
          std::span(sample.keys).first(static_cast<std::size_t>(sample.key_limits[static_cast<std::size_t>(row)]));
      std::vector<double> weights;
      for (const Position token : visible) {
        double score = 0;
        for (Index i = 0; i < shape.head_dim; ++i) {
          score += static_cast<double>(sample.queries(row, query_at + i)) *
                   static_cast<double>(sample.cached_keys(token, key_at + i));
        }
        weights.push_back(score * shape.scale);
      }
      const double largest = *std::max_element(weights.begin(), weights.end());
      for (double& weight : weights) weight = std::exp(weight - largest);
      const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (std::size_t k = 0; k < visible.size(); ++k) {
        for (Index i = 0; i < shape.head_dim; ++i) {
          out(row, query_at + i) +=
              weights[k] / total * static_cast<double>(sample.cached_values(visible[k], key_at + i));
        }
      }
    }
  }
  return out;
}

std::vector<Position> first_positions(Position count, Position first = 0) {
  std::vector<Position> positions(static_cast<std::size_t>(count));
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

/// Keeps about `percent` of the tokens, the last one always.
std::vector<Position> ragged_positions(Position tokens, unsigned percent) {
  std::mt19937 random(percent);
  std::vector<Position> kept;
  for (Position token = 0; token < tokens; ++token) {
    if (random() % 100 < percent || token + 1 == tokens) kept.push_back(token);
  }
  return kept;
}

template <class T>
void check_sample(const Sample<T>& sample, double allowed = tolerance<T>) {
  CAPTURE(sample.shape.heads);
  CAPTURE(sample.shape.kv_heads);
  CAPTURE(sample.shape.head_dim);
  CAPTURE(sample.queries.rows);
  CAPTURE(sample.keys.size());
  const auto expected = reference(sample);
  for (const BlockProducts products : {BlockProducts::automatic, BlockProducts::own}) {
    CAPTURE(static_cast<int>(products));
    const auto out = sample.run(2, products);
    check_close(out, expected, allowed);
    CHECK(sample.run(1, products).same_bits(out));
    CHECK(sample.run(5, products).same_bits(out));
  }
}

TEST_CASE_TEMPLATE("causal rows", T, float, Eigen::bfloat16) {
  for (const Position tokens : {1, 2, 5, 63, 64, 65, 130, 201}) {
    check_sample(sample<T>({2, 2, 64}, tokens, first_positions(tokens), first_positions(tokens, 1)));
  }
}

TEST_CASE_TEMPLATE("grouped heads of all widths", T, float, Eigen::bfloat16) {
  for (const Index group : {1, 2, 4, 8}) {
    for (const Index head_dim : {2, 6, 8, 48, 64, 80, 128, 134}) {
      const Index kv_heads = 3;
      check_sample(sample<T>({group * kv_heads, kv_heads, head_dim}, 71, first_positions(71), first_positions(71, 1)));
      check_sample(sample<T>({group * kv_heads, kv_heads, head_dim}, 71, first_positions(71), {71}));
    }
  }
}

TEST_CASE_TEMPLATE("suffix rows", T, float, Eigen::bfloat16) {
  for (const Position rows : {1, 3, 17, 40, 100}) {
    check_sample(sample<T>({4, 2, 32}, 301, first_positions(301), first_positions(rows, 302 - rows)));
  }
}

TEST_CASE_TEMPLATE("ragged keys and rows; other tokens are not read", T, float, Eigen::bfloat16) {
  for (const unsigned percent : {1u, 20u, 50u, 90u}) {
    const auto keys = ragged_positions(400, percent);
    const auto count = static_cast<Position>(keys.size());
    check_sample(sample<T>({4, 2, 64}, 400, keys, first_positions(count, 1)));
    std::vector<Position> some_limits;
    for (Position limit = 1 + count / 7; limit <= count; limit += 1 + count / 11) some_limits.push_back(limit);
    some_limits.push_back(count);
    check_sample(sample<T>({4, 2, 64}, 400, keys, some_limits));
    check_sample(sample<T>({4, 2, 64}, 400, keys, {count, count, count}));
  }
}

TEST_CASE_TEMPLATE("a few rows over many chunks of keys", T, float, Eigen::bfloat16) {
  const auto keys = ragged_positions(1500, 90);
  const auto count = static_cast<Position>(keys.size());
  REQUIRE(count > 1300);
  for (const Index group : {1, 2, 3, 8}) {
    for (const Index head_dim : {2, 32, 64, 100, 134}) {
      check_sample(sample<T>({2 * group, 2, head_dim}, 1500, keys, {count}));
    }
  }
  const std::vector<Position> limits{1, 511, 512, 513, 600, 1024, 1025, count};
  for (std::size_t first = 0; first < limits.size(); ++first) {
    check_sample(
        sample<T>({2, 2, 80}, 1500, keys, {limits.begin() + static_cast<std::ptrdiff_t>(first), limits.end()}));
    check_sample(sample<T>({2, 1, 64}, 1500, keys, {limits[first]}));
  }
}

/// Runs `row` of `all` again, `copies` times and without the other rows, and expects the same bits.
template <class T>
void check_row(const Sample<T>& all, const Matrix<T>& out, Index row, Index copies,
               BlockProducts products = BlockProducts::automatic) {
  CAPTURE(row);
  CAPTURE(copies);
  CAPTURE(static_cast<int>(products));
  auto alone = all;
  const Position limit = all.key_limits[static_cast<std::size_t>(row)];
  alone.key_limits.assign(static_cast<std::size_t>(copies), limit);
  alone.queries = Matrix<T>(copies, all.queries.width);
  for (Index copy = 0; copy < copies; ++copy) {
    std::copy_n(all.queries.view().row(row), all.queries.width, alone.queries.view().row(copy));
  }
  // Later tokens would show in the result if their weight were not exactly zero.
  for (Index token = limit; token < all.cached_values.rows; ++token) {
    for (Index i = 0; i < all.cached_values.width; ++i) alone.cached_values(token, i) = static_cast<T>(1e30f);
  }
  const auto out_alone = alone.run(1, products);
  for (Index copy = 0; copy < copies; ++copy) {
    CHECK(std::memcmp(out_alone.view().row(copy), out.view().row(row),
                      static_cast<std::size_t>(out.width) * sizeof(T)) == 0);
  }
}

TEST_CASE_TEMPLATE("a row depends on its own keys only, bit for bit", T, float, Eigen::bfloat16) {
  const auto many = sample<T>({16, 2, 16}, 150, first_positions(150), first_positions(150, 1));
  const auto out = many.run(2);
  for (const Position row : {0, 1, 63, 64, 100, 149}) check_row(many, out, row, 33);
  for (const Position limit : {1, 100, 511, 512, 513, 1024, 1100}) {
    const auto few = sample<T>({2, 2, 48}, 1200, first_positions(1200), {limit, 1200});
    const auto out_few = few.run(2);
    check_row(few, out_few, 0, 1);
    check_row(few, out_few, 1, 2);
  }
}

TEST_CASE_TEMPLATE("a row has the same bits wherever it stands in its blocks", T, float, Eigen::bfloat16) {
  // Several blocks of keys and of queries, whose last ones are of all sizes.
  const auto all = sample<T>({2, 1, 64}, 700, first_positions(700), first_positions(700, 1));
  for (const BlockProducts products : {BlockProducts::automatic, BlockProducts::own}) {
    const auto out = all.run(2, products);
    for (const Position row : {0, 63, 64, 200, 256, 511, 699}) {
      for (const Index copies : {33, 50, 100}) check_row(all, out, row, copies, products);
    }
  }
}

#ifdef LLAMA_HAS_ONEDNN
TEST_CASE("oneDNN's products give a row the same bits whatever the number of rows") {
  using Products = OneDnnProducts<Eigen::bfloat16>;
  if (!Products::supported()) return;
  constexpr Index most_rows = 128;
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  for (const Index width : {16, 32, 48, 64, 128}) {
    for (const Index keys : {64, 256}) {
      CAPTURE(width);
      CAPTURE(keys);
      const auto queries = random_matrix<Eigen::bfloat16>(most_rows, width, 1);
      const auto key_rows = random_matrix<Eigen::bfloat16>(keys, width, 2);
      const auto weights = random_matrix<Eigen::bfloat16>(most_rows, keys, 3);
      const auto values = random_matrix<Eigen::bfloat16>(keys, width, 4);
      const auto scores_of = [&](Index rows) {
        Matrix<float> scores(rows, keys);
        Products::score(rows, keys, width, queries.values.data(), key_rows.values.data(), scores.values.data());
        return scores.values;
      };
      const auto sums_of = [&](Index rows) {
        Matrix<float> sums(rows, width);
        Products::mix(rows, keys, width, weights.values.data(), values.values.data(), sums.values.data());
        return sums.values;
      };
      const auto all_scores = scores_of(most_rows), all_sums = sums_of(most_rows);
      for (Index rows = Products::min_rows; rows < most_rows; rows *= 2) {
        CAPTURE(rows);
        const auto scores = scores_of(rows), sums = sums_of(rows);
        CHECK(std::equal(scores.begin(), scores.end(), all_scores.begin()));
        CHECK(std::equal(sums.begin(), sums.end(), all_sums.begin()));
      }
    }
  }
  omp_set_num_threads(threads);
}
#endif

TEST_CASE_TEMPLATE("many blocks of listed keys", T, float, Eigen::bfloat16) {
  const auto keys = ragged_positions(1400, 60);
  const auto count = static_cast<Position>(keys.size());
  REQUIRE(count > 3 * 256);
  std::vector<Position> limits;
  for (Position limit = 5; limit <= count; limit += 9) limits.push_back(limit);
  for (const Index group : {1, 3, 8}) check_sample(sample<T>({group, 1, 64}, 1400, keys, limits));
  check_sample(sample<T>({2, 2, 128}, 1400, keys, first_positions(150, count - 149)));
}

TEST_CASE_TEMPLATE("the memory of many rows does not grow with rows and keys", T, float, Eigen::bfloat16) {
  lazyllm::cpu::Context context(2);
  const auto memory_after = [&context](Position tokens) {
    const auto made = sample<T>({2, 1, 64}, tokens, first_positions(tokens), first_positions(tokens, 1));
    Matrix<T> out(made.queries.rows, made.queries.width);
    attention(context, made.shape, made.cache(), made.keys, made.key_limits, made.queries.view(), out.view());
    return context.scratch(1).data();  // another place where it had to grow
  };
  const float* const memory = memory_after(300);
  CHECK(memory_after(2400) == memory);
}

TEST_CASE_TEMPLATE("a few rows agree with the same rows among many", T, float, Eigen::bfloat16) {
  const auto many = sample<T>({4, 2, 64}, 1100, first_positions(1100), first_positions(40, 1061));
  auto last = many;
  last.key_limits = {1100};
  last.queries = Matrix<T>(1, many.queries.width);
  std::copy_n(many.queries.view().row(39), many.queries.width, last.queries.values.data());
  const auto out = many.run(1);
  Matrix<float> expected(1, out.width);
  for (Index i = 0; i < out.width; ++i) expected(0, i) = static_cast<float>(out(39, i));
  check_close(last.run(1), expected, tolerance<T>);
}

TEST_CASE_TEMPLATE("large scores do not overflow, and hidden keys weigh exactly nothing", T, float, Eigen::bfloat16) {
  auto made = sample<T>({2, 1, 32}, 140, first_positions(140), first_positions(140, 1), 30);
  check_sample(made, 10 * tolerance<T>);  // scores of some hundreds keep fewer places behind the point
  const auto out = made.run(1);
  for (Index i = 0; i < made.cached_values.width; ++i) made.cached_values(139, i) = static_cast<T>(1e30f);
  const auto changed = made.run(1);
  CHECK(std::memcmp(changed.values.data(), out.values.data(), static_cast<std::size_t>(139 * out.width) * sizeof(T)) ==
        0);
}

TEST_CASE_TEMPLATE("strided queries, cache and out", T, float, Eigen::bfloat16) {
  const auto packed = sample<T>({4, 2, 16}, 90, first_positions(90), first_positions(90, 1));
  const auto expected = packed.run(1);
  // Heads before tokens, as [kv_heads x tokens x head_dim]; queries at the head of wider, fused rows.
  Matrix<T> keys(2 * 90, 16), values(2 * 90, 16), fused(90, 100), out(90, 70);
  for (Index token = 0; token < 90; ++token) {
    for (Index i = 0; i < 32; ++i) {
      keys(i / 16 * 90 + token, i % 16) = packed.cached_keys(token, i);
      values(i / 16 * 90 + token, i % 16) = packed.cached_values(token, i);
    }
    std::copy_n(packed.queries.view().row(token), 64, fused.view().row(token));
  }
  lazyllm::cpu::Context context(2);
  attention<T>(context, packed.shape, {keys.values.data(), values.values.data(), 16, 90 * 16}, packed.keys,
               packed.key_limits, {fused.values.data(), 90, 64, 100}, {out.values.data(), 90, 64, 70});
  for (Index token = 0; token < 90; ++token) {
    CHECK(std::memcmp(out.view().row(token), expected.view().row(token), 64 * sizeof(T)) == 0);
  }
}

TEST_CASE("attention accepts no rows and rejects what does not fit") {
  auto good = sample<float>({4, 2, 8}, 10, first_positions(10), first_positions(10, 1));
  auto none = sample<float>({4, 2, 8}, 10, first_positions(10), {});
  CHECK(none.run(2).values.empty());
  const auto rejects = [&](const auto& change) {
    auto bad = good;
    change(bad);
    CHECK_THROWS_AS(bad.run(1), std::invalid_argument);
  };
  rejects([](auto& bad) { bad.shape.kv_heads = 3; });
  rejects([](auto& bad) { bad.shape.head_dim = 7; });
  rejects([](auto& bad) { bad.shape.heads = 8; });
  rejects([](auto& bad) { bad.key_limits.back() = 11; });
  rejects([](auto& bad) { bad.key_limits.front() = 0; });
  rejects([](auto& bad) { std::swap(bad.key_limits[3], bad.key_limits[4]); });
  rejects([](auto& bad) { bad.key_limits.pop_back(); });
}

}  // namespace
}  // namespace llama::test
