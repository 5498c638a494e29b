#include <numbers>
#include <numeric>

#include "examples/llama/kernels/pointwise.hpp"
#include "examples/llama/library.hpp"
#include "support.hpp"

namespace llama::test {
namespace {

template <class T>
constexpr double rounding = std::is_same_v<T, float> ? 2e-6 : 4e-3;

/// Runs `operation(out, threads)` with several numbers of threads, checks that the bits are the same, returns them.
template <class T, class Operation>
Matrix<T> run(const Matrix<T>& start, const Operation& operation) {
  auto out = start;
  operation(out.view(), 1);
  for (const int threads : {2, 3}) {
    auto again = start;
    operation(again.view(), threads);
    CHECK(again.same_bits(out));
  }
  return out;
}

TEST_CASE_TEMPLATE("root mean square norm", T, float, Eigen::bfloat16) {
  for (const auto& [rows, width] : {std::pair<Index, Index>{1, 1}, {3, 7}, {50, 768}, {5, 1537}}) {
    const auto x = random_matrix<T>(rows, width, 1, 5);
    const auto weight = random_matrix<float>(1, width, 2);
    Matrix<double> expected(rows, width);
    for (Index i = 0; i < rows; ++i) {
      double squares = 0;
      for (Index j = 0; j < width; ++j) squares += std::pow(static_cast<double>(x(i, j)), 2);
      for (Index j = 0; j < width; ++j) {
        expected(i, j) = static_cast<double>(x(i, j)) / std::sqrt(squares / static_cast<double>(width) + 0.5) *
                         static_cast<double>(weight(0, j));
      }
    }
    const auto norm = [&](RowsView<T> out, int threads) { rms_norm(x.view(), weight.values, 0.5f, out, threads); };
    check_close(run(Matrix<T>(rows, width), norm), expected, rounding<T>);
    const auto in_place = [&](RowsView<T> out, int threads) { rms_norm<T>(out, weight.values, 0.5f, out, threads); };
    check_close(run(x, in_place), expected, rounding<T>);
  }
}

/// The rotary frequencies, written from their definitions.
double frequency(Index i, Index head_dim, double theta, const RopeScaling& scaling) {
  const double plain = 1 / std::pow(theta, static_cast<double>(2 * i) / static_cast<double>(head_dim));
  if (const auto* linear = std::get_if<LinearRopeScaling>(&scaling)) return plain / linear->factor;
  if (const auto* llama3 = std::get_if<Llama3RopeScaling>(&scaling)) {
    const auto context = static_cast<double>(llama3->original_max_position_embeddings);
    const double wavelength = 2 * std::numbers::pi / plain;
    if (wavelength > context / llama3->low_freq_factor) return plain / llama3->factor;
    if (wavelength < context / llama3->high_freq_factor) return plain;
    const double smooth =
        (context / wavelength - llama3->low_freq_factor) / (llama3->high_freq_factor - llama3->low_freq_factor);
    return (1 - smooth) * plain / llama3->factor + smooth * plain;
  }
  return plain;
}

TEST_CASE_TEMPLATE("rotary embedding", T, float, Eigen::bfloat16) {
  const RopeScaling scalings[] = {NoRopeScaling{}, LinearRopeScaling{4}, Llama3RopeScaling{8, 1, 4, 64}};
  for (const RopeScaling& scaling : scalings) {
    for (const bool interleaved : {false, true}) {
      for (const Index head_dim : {2, 6, 64, 128}) {
        const Index rows = head_dim == 2 ? 1 : head_dim + 5;
        CAPTURE(head_dim);
        CAPTURE(interleaved);
        CAPTURE(scaling.index());
        const Index heads = 3;
        std::vector<Position> positions;
        for (Index i = 0; i < rows; ++i) positions.push_back(static_cast<Position>(5 * i + i % 3));
        RotaryTable table(head_dim, 500, scaling, interleaved);
        table.reserve(3);  // grows in two steps
        table.reserve(positions.back() + 1);
        const auto x = random_matrix<T>(rows, heads * head_dim, 1);
        Matrix<double> expected(rows, heads * head_dim);
        for (Index row = 0; row < rows; ++row) {
          for (Index i = 0; i < head_dim / 2; ++i) {
            const double angle = positions[static_cast<std::size_t>(row)] * frequency(i, head_dim, 500, scaling);
            for (Index head = 0; head < heads; ++head) {
              const Index a = head * head_dim + (interleaved ? 2 * i : i);
              const Index b = interleaved ? a + 1 : a + head_dim / 2;
              const auto first = static_cast<double>(x(row, a));
              const auto second = static_cast<double>(x(row, b));
              expected(row, a) = first * std::cos(angle) - second * std::sin(angle);
              expected(row, b) = second * std::cos(angle) + first * std::sin(angle);
            }
          }
        }
        const auto rotated = run(x, [&](RowsView<T> out, int threads) { rotate(out, positions, table, threads); });
        check_close(rotated, expected, rounding<T>);
      }
    }
  }
}

TEST_CASE("llama 3 scaling reaches all of its three ranges") {
  const RopeScaling scaling = Llama3RopeScaling{8, 1, 4, 64};
  int slowed = 0, kept = 0, blended = 0;
  for (Index i = 0; i < 32; ++i) {
    const double ratio = frequency(i, 64, 500, scaling) / frequency(i, 64, 500, NoRopeScaling{});
    ++(ratio == 1 ? kept : ratio < 0.1251 ? slowed : blended);
  }
  CHECK(slowed > 0);
  CHECK(kept > 0);
  CHECK(blended > 0);
}

TEST_CASE_TEMPLATE("gated unit", T, float, Eigen::bfloat16) {
  for (const auto& [rows, width] : {std::pair<Index, Index>{1, 1}, {3, 7}, {40, 2048}, {5, 513}}) {
    const auto x = random_matrix<T>(rows, 2 * width, 1, 30);
    Matrix<double> expected(rows, width);
    for (Index i = 0; i < rows; ++i) {
      for (Index j = 0; j < width; ++j) {
        const auto gate = static_cast<double>(x(i, j));
        expected(i, j) = gate / (1 + std::exp(-gate)) * static_cast<double>(x(i, width + j));
      }
    }
    const auto out = run(Matrix<T>(rows, width), [&](RowsView<T> y, int threads) { swiglu(x.view(), y, threads); });
    check_close(out, expected, rounding<T>);
  }
  auto extreme = Matrix<T>(1, 4, static_cast<T>(1));
  extreme(0, 0) = static_cast<T>(-1e4f);
  extreme(0, 1) = static_cast<T>(1e4f);
  Matrix<T> out(1, 2);
  swiglu<T>(extreme.view(), out.view(), 1);
  CHECK(static_cast<float>(out(0, 0)) == doctest::Approx(0));
  CHECK(static_cast<float>(out(0, 1)) == static_cast<float>(extreme(0, 1)));
}

template <class T, class W>
void check_embed() {
  const auto table = random_matrix<W>(11, 700, 1);
  const std::vector<std::int32_t> tokens{3, 0, 10, 3};
  const auto out =
      run(Matrix<T>(4, 700), [&](RowsView<T> rows, int threads) { embed(tensor_of(table), tokens, rows, threads); });
  for (Index i = 0; i < 4; ++i) {
    for (Index j = 0; j < 700; ++j) {
      const auto weight = static_cast<float>(table(tokens[static_cast<std::size_t>(i)], j));
      REQUIRE(static_cast<float>(out(i, j)) == static_cast<float>(static_cast<T>(weight)));
    }
  }
}

TEST_CASE_TEMPLATE("embedding", T, float, Eigen::bfloat16) {
  check_embed<T, float>();
  check_embed<T, Eigen::half>();
  check_embed<T, Eigen::bfloat16>();
}

TEST_CASE("what does not fit is rejected") {
  Matrix<float> x(2, 6), y(2, 6), wide(2, 7);
  const std::vector<float> weight(6), short_weight(5);
  CHECK_THROWS_AS(rms_norm<float>(x.view(), short_weight, 0, y.view(), 1), std::invalid_argument);
  CHECK_THROWS_AS(rms_norm<float>(x.view(), weight, 0, wide.view(), 1), std::invalid_argument);
  CHECK_THROWS_AS(swiglu<float>(x.view(), y.view(), 1), std::invalid_argument);
  CHECK_THROWS_AS(RotaryTable(7, 1e4, NoRopeScaling{}, false), std::invalid_argument);
  RotaryTable table(6, 1e4, NoRopeScaling{}, false);
  table.reserve(4);
  const std::vector<Position> far{1, 4}, one{1};
  CHECK_THROWS_AS(rotate(x.view(), far, table, 1), std::invalid_argument);
  CHECK_THROWS_AS(rotate(x.view(), one, table, 1), std::invalid_argument);
  CHECK_THROWS_AS(rotate(wide.view(), one, table, 1), std::invalid_argument);
  const std::vector<std::int32_t> tokens{0, 2}, negative{-1, 0};
  CHECK_THROWS_AS(embed(tensor_of(x), tokens, y.view(), 1), std::invalid_argument);
  CHECK_THROWS_AS(embed(tensor_of(x), negative, y.view(), 1), std::invalid_argument);
  CHECK_THROWS_AS(embed(tensor_of(wide), one, y.view().subrows(0, 1), 1), std::invalid_argument);
}

}  // namespace
}  // namespace llama::test
