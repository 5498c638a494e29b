#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "examples/llama/kernels/cpu/pointwise.hpp"
#include "examples/llama/library.hpp"
#include "support.hpp"

namespace llama::test {
namespace {

TEST_CASE_TEMPLATE("root mean square norm", T, float, Eigen::bfloat16) {
  for (const auto& [rows, width] : {std::pair<Index, Index>{1, 1}, {3, 7}, {50, 768}, {70, 768}, {5, 1537}}) {
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
    const auto norm = [&](lazyllm::cpu::Context& context, RowsView<T> out) {
      rms_norm(context, x.view(), weight.values, 0.5f, out);
    };
    check_close(run(Matrix<T>(rows, width), norm), expected, rounding<T>);
    const auto in_place = [&](lazyllm::cpu::Context& context, RowsView<T> out) {
      rms_norm<T>(context, out, weight.values, 0.5f, out);
    };
    check_close(run(x, in_place), expected, rounding<T>);
  }
}

TEST_CASE_TEMPLATE("root mean square norm of each head", T, float, Eigen::bfloat16) {
  for (const auto& [rows, heads, head_dim] :
       {std::array<Index, 3>{1, 1, 1}, {3, 2, 7}, {70, 9, 64}, {5, 2, 1537}, {2, 0, 8}}) {
    const auto x = random_matrix<T>(rows, heads * head_dim + 3, 1, 5);
    const auto weight = random_matrix<float>(1, head_dim, 2);
    Matrix<double> expected(rows, x.view().width);
    for (Index i = 0; i < rows; ++i) {
      for (Index j = 0; j < expected.view().width; ++j) expected(i, j) = static_cast<double>(x(i, j));
      for (Index first = 0; first < heads * head_dim; first += head_dim) {
        double squares = 0;
        for (Index j = 0; j < head_dim; ++j) squares += std::pow(static_cast<double>(x(i, first + j)), 2);
        const double root = std::sqrt(squares / static_cast<double>(head_dim) + 0.5);
        for (Index j = 0; j < head_dim; ++j) expected(i, first + j) *= static_cast<double>(weight(0, j)) / root;
      }
    }
    const Index width = heads * head_dim;
    const auto norm = [&](lazyllm::cpu::Context& context, RowsView<T> all) {
      rms_norm_heads(context, weight.values, 0.5f, RowsView<T>(all.data, all.rows, width, all.stride));
    };
    check_close(run(x, norm), expected, rounding<T>);
  }
}

TEST_CASE_TEMPLATE("gated unit", T, float, Eigen::bfloat16) {
  for (const auto& [rows, width] : {std::pair<Index, Index>{1, 1}, {3, 7}, {40, 2048}, {70, 600}, {5, 513}}) {
    const auto x = random_matrix<T>(rows, 2 * width, 1, 30);
    Matrix<double> expected(rows, width);
    for (Index i = 0; i < rows; ++i) {
      for (Index j = 0; j < width; ++j) {
        const auto gate = static_cast<double>(x(i, j));
        expected(i, j) = gate / (1 + std::exp(-gate)) * static_cast<double>(x(i, width + j));
      }
    }
    const auto out = run(Matrix<T>(rows, width),
                         [&](lazyllm::cpu::Context& context, RowsView<T> y) { swiglu(context, x.view(), y); });
    check_close(out, expected, rounding<T>);
  }
  auto extreme = Matrix<T>(1, 4, static_cast<T>(1));
  extreme(0, 0) = static_cast<T>(-1e4f);
  extreme(0, 1) = static_cast<T>(1e4f);
  Matrix<T> out(1, 2);
  lazyllm::cpu::Context context;
  swiglu<T>(context, extreme.view(), out.view());
  CHECK(static_cast<float>(out(0, 0)) == doctest::Approx(0));
  CHECK(static_cast<float>(out(0, 1)) == static_cast<float>(extreme(0, 1)));
}

TEST_CASE_TEMPLATE("sum of floats and rows", T, float, Eigen::bfloat16) {
  for (const auto& [rows, width] : {std::pair<Index, Index>{1, 1}, {3, 7}, {40, 513}}) {
    const auto x = random_matrix<float>(rows, width, 1, 30);
    const auto y = random_matrix<T>(rows, width, 2, 30);
    Matrix<double> expected(rows, width);
    for (Index i = 0; i < rows; ++i) {
      for (Index j = 0; j < width; ++j) expected(i, j) = static_cast<double>(x(i, j)) + static_cast<double>(y(i, j));
    }
    const auto out = run(y, [&](lazyllm::cpu::Context& context, RowsView<T> to) { add(context, x.view(), to); });
    check_close(out, expected, rounding<T>);
  }
}

template <class T, class W>
void check_embed() {
  const auto table = random_matrix<W>(11, 700, 1);
  const std::vector<std::int32_t> tokens{3, 0, 10, 3};
  const auto out = run(Matrix<T>(4, 700), [&](lazyllm::cpu::Context& context, RowsView<T> rows) {
    embed(context, tensor_of(table), tokens, rows);
  });
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

TEST_CASE("log probabilities of tokens") {
  for (const Index vocab : {1, 97, 5000}) {
    auto logits = random_matrix<float>(7, vocab, 1, 20);
    logits(0, 0) = 1000;  // the exponentials alone would overflow
    std::vector<std::int32_t> tokens;
    std::vector<double> expected;
    for (Index i = 0; i < logits.rows; ++i) {
      tokens.push_back(static_cast<std::int32_t>(i * 1237 % vocab));
      const float highest = *std::max_element(logits.view().row(i), logits.view().row(i) + vocab);
      double sum = 0;
      for (Index j = 0; j < vocab; ++j) sum += std::exp(static_cast<double>(logits(i, j)) - highest);
      expected.push_back(static_cast<double>(logits(i, tokens.back())) - highest - std::log(sum));
    }
    for (const int threads : {1, 3}) {
      lazyllm::cpu::Context context(threads);
      std::vector<float> found(tokens.size());
      log_probabilities(context, std::as_const(logits).view(), tokens, found);
      for (std::size_t i = 0; i < found.size(); ++i) {
        CHECK(found[i] == doctest::Approx(expected[i]).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("what does not fit is rejected") {
  lazyllm::cpu::Context context;
  Matrix<float> x(2, 6), y(2, 6), wide(2, 7);
  const std::vector<float> weight(6), short_weight(5);
  CHECK_THROWS_AS(rms_norm<float>(context, x.view(), short_weight, 0, y.view()), std::invalid_argument);
  CHECK_THROWS_AS(rms_norm<float>(context, x.view(), weight, 0, wide.view()), std::invalid_argument);
  CHECK_THROWS_AS(rms_norm_heads<float>(context, short_weight, 0, x.view()), std::invalid_argument);
  CHECK_THROWS_AS(rms_norm_heads<float>(context, {}, 0, x.view()), std::invalid_argument);
  CHECK_THROWS_AS(swiglu<float>(context, x.view(), y.view()), std::invalid_argument);
  const std::vector<std::int32_t> tokens{0, 2}, negative{-1, 0}, one{1};
  CHECK_THROWS_AS(embed(context, tensor_of(x), tokens, y.view()), std::invalid_argument);
  CHECK_THROWS_AS(embed(context, tensor_of(x), negative, y.view()), std::invalid_argument);
  CHECK_THROWS_AS(embed(context, tensor_of(wide), one, y.view().subrows(0, 1)), std::invalid_argument);
  std::vector<float> found(2);
  CHECK_THROWS_AS(log_probabilities(context, x.view(), one, found), std::invalid_argument);
  CHECK_THROWS_AS(log_probabilities(context, x.view(), negative, found), std::invalid_argument);
  CHECK_THROWS_AS(log_probabilities(context, x.view(), std::vector<std::int32_t>{0, 6}, found), std::invalid_argument);
}

}  // namespace
}  // namespace llama::test
