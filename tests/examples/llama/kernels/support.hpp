#pragma once

#include <doctest/doctest.h>

#include <Eigen/Core>
#include <cmath>
#include <cstring>
#include <lazyllm/lazyllm.hpp>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "examples/llama/checkpoint/tensor.hpp"
#include "examples/llama/library.hpp"

namespace llama::test {

/// A row-major matrix that owns its memory.
template <class T>
struct Matrix {
  Index rows = 0;
  Index width = 0;
  std::vector<T> values;

  Matrix(Index rows_, Index width_, T value = T(0))
      : rows(rows_), width(width_), values(static_cast<std::size_t>(rows_ * width_), value) {}

  T& operator()(Index i, Index j) { return values[static_cast<std::size_t>(i * width + j)]; }
  const T& operator()(Index i, Index j) const { return values[static_cast<std::size_t>(i * width + j)]; }
  RowsView<T> view() { return {values.data(), rows, width}; }
  RowsView<const T> view() const { return {values.data(), rows, width}; }

  bool same_bits(const Matrix& other) const {
    return values.size() == other.values.size() &&
           std::memcmp(values.data(), other.values.data(), values.size() * sizeof(T)) == 0;
  }
};

template <class T>
Matrix<T> random_matrix(Index rows, Index width, unsigned seed, float size = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> values(-size, size);
  Matrix<T> matrix(rows, width);
  for (T& value : matrix.values) value = static_cast<T>(values(random));
  return matrix;
}

template <class T>
constexpr DType dtype_of = std::is_same_v<T, float>         ? DType::f32
                           : std::is_same_v<T, Eigen::half> ? DType::f16
                                                            : DType::bf16;

template <class T>
Tensor tensor_of(const Matrix<T>& matrix) {
  return {dtype_of<T>, {matrix.rows, matrix.width}, reinterpret_cast<const std::byte*>(matrix.values.data())};
}

/// Relative error that rounding a result, and the inputs of its sums, to T may cause.
template <class T>
constexpr double tolerance = std::is_same_v<T, float> ? 1e-5 : 1e-2;

/// Every value within `tolerance` of the reference's largest absolute value, or of `least` if that is more.
template <class T, class Reference>
void check_close(const Matrix<T>& got, const Matrix<Reference>& expected, double allowed, double least = 1e-3) {
  REQUIRE(got.values.size() == expected.values.size());
  double largest = least;
  for (const Reference value : expected.values) largest = std::max(largest, std::abs(static_cast<double>(value)));
  double worst = 0;
  for (std::size_t i = 0; i < got.values.size(); ++i) {
    const double error = std::abs(static_cast<double>(got.values[i]) - static_cast<double>(expected.values[i]));
    worst = error <= worst ? worst : error;  // keeps a NaN
  }
  CHECK(worst <= allowed * largest);
}

/// Relative error that rounding a result once to T may cause.
template <class T>
constexpr double rounding = std::is_same_v<T, float> ? 2e-6 : 4e-3;

/// Runs `operation(context, out)` with several numbers of threads, checks that the bits are the same, returns them.
template <class T, class Operation>
Matrix<T> run(const Matrix<T>& start, const Operation& operation) {
  auto out = start;
  lazyllm::cpu::Context one(1);
  operation(one, out.view());
  for (const int threads : {2, 3}) {
    auto again = start;
    lazyllm::cpu::Context several(threads);
    operation(several, again.view());
    CHECK(again.same_bits(out));
  }
  return out;
}

}  // namespace llama::test
