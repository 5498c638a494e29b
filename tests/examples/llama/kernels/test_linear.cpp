#include <string>

#include "examples/llama/kernels/linear.hpp"
#include "examples/llama/library.hpp"
#include "support.hpp"

namespace llama::test {
namespace {

/// y = before + x W^T + bias, the obvious way, in double.
template <class T, class W>
Matrix<double> multiply(const Matrix<T>& x, const std::vector<Matrix<W>>& weights, const std::vector<Matrix<W>>& biases,
                        const Matrix<double>& before) {
  Matrix<double> y = before;
  Index first = 0;
  for (std::size_t part = 0; part < weights.size(); ++part) {
    const Matrix<W>& weight = weights[part];
    for (Index i = 0; i < x.rows; ++i) {
      for (Index j = 0; j < weight.rows; ++j) {
        double sum = biases.empty() ? 0 : static_cast<double>(biases[part](0, j));
        for (Index k = 0; k < x.width; ++k) {
          sum += static_cast<double>(x(i, k)) * static_cast<double>(static_cast<T>(static_cast<float>(weight(j, k))));
        }
        y(i, first + j) += sum;
      }
    }
    first += weight.rows;
  }
  return y;
}

template <class T>
Matrix<double> doubles(const Matrix<T>& from) {
  Matrix<double> to(from.rows, from.width);
  for (std::size_t i = 0; i < from.values.size(); ++i) to.values[i] = static_cast<double>(from.values[i]);
  return to;
}

template <class T, class W>
void check_linear(GemmLibrary library, Index in, const std::vector<Index>& outs, bool with_bias) {
  std::vector<Matrix<W>> weights, biases;
  std::vector<Tensor> weight_tensors, bias_tensors;
  Index out = 0;
  for (const Index part : outs) {
    weights.push_back(random_matrix<W>(part, in, static_cast<unsigned>(part)));
    if (with_bias) biases.push_back(random_matrix<W>(1, part, static_cast<unsigned>(part + 1), 4));
    out += part;
  }
  for (const auto& weight : weights) weight_tensors.push_back(tensor_of(weight));
  for (const auto& bias : biases) {
    bias_tensors.push_back(tensor_of(bias));
    bias_tensors.back().shape = {bias.width};
  }
  const Linear<T> linear(weight_tensors, bias_tensors, 2, library);
  CHECK(linear.in() == in);
  CHECK(linear.out() == out);
  for (const Index rows : {1, 2, 7, 33, 129, 300}) {
    CAPTURE(rows);
    const auto x = random_matrix<T>(rows, in, 3);
    const auto expected = multiply(x, weights, biases, Matrix<double>(rows, out));
    Matrix<T> y(rows, out, static_cast<T>(NAN));
    linear.apply(x.view(), y.view(), 2);
    check_close(y, expected, tolerance<T>);

    Matrix<float> exact(rows, out, NAN);
    linear.apply(x.view(), exact.view(), 2);
    check_close(exact, expected, 1e-5);

    auto sum = random_matrix<T>(rows, out, 4, 10);
    const auto expected_sum = multiply(x, weights, biases, doubles(sum));
    linear.accumulate(x.view(), sum.view(), 2);
    check_close(sum, expected_sum, tolerance<T>);

    Matrix<T> one_thread(rows, out), five_threads(rows, out);
    linear.apply(x.view(), one_thread.view(), 1);
    linear.apply(x.view(), five_threads.view(), 5);
    CHECK(one_thread.same_bits(y));
    CHECK(five_threads.same_bits(y));
  }
}

TEST_CASE_TEMPLATE("linear layers multiply like the reference", T, float, Eigen::bfloat16) {
  for (const GemmLibrary library : {GemmLibrary::automatic, GemmLibrary::eigen}) {
    CAPTURE(static_cast<int>(library));
    check_linear<T, T>(library, 64, {192}, false);
    check_linear<T, T>(library, 67, {5}, true);
    check_linear<T, T>(library, 1, {1}, false);
    check_linear<T, T>(library, 96, {96, 32, 32}, true);
    check_linear<T, T>(library, 48, {33, 31, 130}, true);
    check_linear<T, float>(library, 40, {24, 24}, false);
    check_linear<T, Eigen::half>(library, 40, {24, 24}, true);
    check_linear<T, Eigen::bfloat16>(library, 40, {24, 24}, true);
  }
}

TEST_CASE_TEMPLATE("many rows in pieces give what each row gives alone", T, float, Eigen::bfloat16) {
  const auto weight = random_matrix<T>(70, 50, 1);
  const Tensor tensor = tensor_of(weight);
  const Linear<T> linear(std::span(&tensor, 1));
  const auto x = random_matrix<T>(1024 + 256 + 128 + 3, 50, 2);
  Matrix<T> together(x.rows, 70), alone(x.rows, 70);
  linear.apply(x.view(), together.view(), 2);
  for (Index i = 0; i < x.rows; ++i) linear.apply(x.view().subrows(i, 1), alone.view().subrows(i, 1), 2);
  check_close(alone, together, tolerance<T>);
}

TEST_CASE("linear layers accept no rows and reject what does not fit") {
  const auto weight = random_matrix<float>(6, 4, 1);
  const auto other = random_matrix<float>(6, 5, 1);
  const Tensor tensor = tensor_of(weight);
  const Linear<float> linear(std::span(&tensor, 1));
  Matrix<float> x(3, 4), y(3, 6), narrow(3, 5);
  linear.apply(RowsView<const float>(nullptr, 0, 4), RowsView<float>(nullptr, 0, 6), 1);
  CHECK_THROWS_AS(linear.apply(x.view(), narrow.view(), 1), std::invalid_argument);
  CHECK_THROWS_AS(linear.apply(x.view().subrows(0, 2), y.view(), 1), std::invalid_argument);
  CHECK_THROWS_AS(linear.apply(RowsView<const float>(x.values.data(), 2, 4, 5), y.view().subrows(0, 2), 1),
                  std::invalid_argument);
  CHECK_THROWS_AS(linear.apply(x.view(), y.view(), 0), std::invalid_argument);
  CHECK_THROWS_AS(linear.accumulate(narrow.view(), y.view(), 1), std::invalid_argument);
  const std::vector<Tensor> unequal{tensor, tensor_of(other)};
  CHECK_THROWS_AS(Linear<float>{std::span(unequal)}, std::invalid_argument);
  CHECK_THROWS_AS(Linear<float>{std::span<const Tensor>()}, std::invalid_argument);
  const std::vector<Tensor> biases{tensor};
  CHECK_THROWS_AS((Linear<float>{std::span(&tensor, 1), std::span(biases)}), std::invalid_argument);
}

}  // namespace
}  // namespace llama::test
