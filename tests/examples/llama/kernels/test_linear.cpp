#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "examples/llama/kernels/cpu/isa.hpp"
#include "examples/llama/kernels/cpu/linear.hpp"
#include "examples/llama/kernels/cpu/packed_weights.hpp"
#include "examples/llama/kernels/cpu/panels.hpp"
#include "examples/llama/library.hpp"
#include "support.hpp"

namespace llama::test {
namespace {

lazyllm::cpu::Context one_thread(1), two_threads(2), five_threads(5);

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

/// Whether oneDNN is to multiply: on x86, with the instructions that the type needs.
template <class T>
bool onednn_multiplies() {
#ifdef LLAMA_HAS_ONEDNN
  return usable(sizeof(T) == 4 ? Isa::avx512 : Isa::avx512_bf16);
#else
  return false;
#endif
}

template <class T>
Matrix<double> doubles(const Matrix<T>& from) {
  Matrix<double> to(from.rows, from.width);
  for (std::size_t i = 0; i < from.values.size(); ++i) to.values[i] = static_cast<double>(from.values[i]);
  return to;
}

template <class T, class W>
void check_linear(Index in, const std::vector<Index>& outs, bool with_bias) {
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
    bias_tensors.back().shape.assign(1, bias.width);
  }
  const HostLinear<T> linear(weight_tensors, bias_tensors, 2);
  CHECK(linear.in() == in);
  CHECK(linear.out() == out);
  for (const Index rows : {1, 2, 7, 33, 129, 300}) {
    CAPTURE(rows);
    const auto x = random_matrix<T>(rows, in, 3);
    const auto expected = multiply(x, weights, biases, Matrix<double>(rows, out));
    Matrix<T> y(rows, out, static_cast<T>(NAN));
    linear.apply(two_threads, x.view(), y.view());
    check_close(y, expected, tolerance<T>);

    Matrix<float> exact(rows, out, NAN);
    linear.apply(two_threads, x.view(), exact.view());
    check_close(exact, expected, 1e-5);

    auto sum = random_matrix<T>(rows, out, 4, 10);
    const auto expected_sum = multiply(x, weights, biases, doubles(sum));
    linear.accumulate(two_threads, x.view(), sum.view());
    check_close(sum, expected_sum, tolerance<T>);

    Matrix<T> by_one(rows, out), by_five(rows, out);
    linear.apply(one_thread, x.view(), by_one.view());
    linear.apply(five_threads, x.view(), by_five.view());
    CHECK(by_one.same_bits(y));
    CHECK(by_five.same_bits(y));
  }
}

TEST_CASE_TEMPLATE("linear layers multiply like the reference", T, float, Eigen::bfloat16) {
  check_linear<T, T>(64, {192}, false);
  check_linear<T, T>(67, {5}, true);
  check_linear<T, T>(1, {1}, false);
  check_linear<T, T>(96, {96, 32, 32}, true);
  check_linear<T, T>(48, {33, 31, 130}, true);
  check_linear<T, float>(40, {24, 24}, false);
  check_linear<T, Eigen::half>(40, {24, 24}, true);
  check_linear<T, Eigen::bfloat16>(40, {24, 24}, true);
}

TEST_CASE_TEMPLATE("panels multiply any number of inputs, and oneDNN where it is to", T, float, Eigen::bfloat16) {
  for (const Index in : {64, 63}) {  // with 63 the last pair of bfloat16 is half empty
    CAPTURE(in);
    const auto weight = random_matrix<T>(96, in, 1);
    const UnpackedWeights<T> unpacked{in, 96, weight.values};
#ifdef LLAMA_HAS_ONEDNN
    CHECK((pack_for_onednn(unpacked, 1) != nullptr) == onednn_multiplies<T>());
#endif
    const auto x = random_matrix<T>(40, in, 2);
    Matrix<float> y(40, 96, NAN);
    pack_in_panels(unpacked, 1)->multiply(x.values.data(), 40, {y.values.data(), 96, nullptr, true, false}, 2);
    check_close(y, multiply<T, T>(x, {weight}, {}, Matrix<double>(40, 96)), 1e-5);
  }
}

TEST_CASE_TEMPLATE("callers at the same time multiply by one layer, and nothing stays of what was multiplied before", T,
                   float, Eigen::bfloat16) {
  const Index out = 70;  // with an odd number of inputs rows of bfloat16 are copied, with a gap behind each
  const auto weight = random_matrix<T>(out, 63, 1), others = random_matrix<T>(out, 61, 2);
  const auto panels = pack_in_panels(UnpackedWeights<T>{63, out, weight.values}, 1);
  const auto other_panels = pack_in_panels(UnpackedWeights<T>{61, out, others.values}, 1);
  std::array<Matrix<float>, 2> results{Matrix<float>(9, out), Matrix<float>(9, out)};
  std::array<Index, 2> wrong{};
  const auto input = [](std::size_t caller) { return random_matrix<T>(9, 63, static_cast<unsigned>(3 + caller)); };
  const auto call = [&](std::size_t caller) {
    const auto x = input(caller);
    const Matrix<T> bad(40, 61, static_cast<T>(NAN));
    Matrix<float> y(9, out), ignored(40, out);
    for (int round = 0; round < 100; ++round) {
      other_panels->multiply(bad.values.data(), 40, {ignored.values.data(), out, nullptr, true, false}, 1);
      panels->multiply(x.values.data(), 9, {y.values.data(), out, nullptr, true, false}, 1);
      if (round == 0) results[caller] = y;
      wrong[caller] += y.same_bits(results[caller]) ? 0 : 1;
    }
  };
  std::thread other(call, 1);
  call(0);
  other.join();
  CHECK(wrong == std::array<Index, 2>{});
  for (std::size_t caller = 0; caller < 2; ++caller) {
    check_close(results[caller], multiply<T, T>(input(caller), {weight}, {}, Matrix<double>(9, out)), 1e-5);
  }
}

TEST_CASE_TEMPLATE("many rows in pieces give what each row gives alone", T, float, Eigen::bfloat16) {
  const auto weight = random_matrix<T>(70, 50, 1);
  const Tensor tensor = tensor_of(weight);
  const HostLinear<T> linear(std::span(&tensor, 1));
  const auto x = random_matrix<T>(1024 + 512 + 256 + 200, 50, 2);
  Matrix<T> together(x.rows, 70), alone(x.rows, 70);
  linear.apply(two_threads, x.view(), together.view());
  for (Index i = 0; i < x.rows; ++i) linear.apply(two_threads, x.view().subrows(i, 1), alone.view().subrows(i, 1));
  check_close(alone, together, tolerance<T>);
}

/// Whole numbers of -127 to 127 and their scale, as a row of x or of weights is rounded.
std::pair<std::vector<int>, float> rounded(const float* values, Index count) {
  float highest = 0;
  for (Index i = 0; i < count; ++i) highest = std::max(highest, std::abs(values[i]));
  const float scale = highest / 127;
  std::vector<int> numbers;
  for (Index i = 0; i < count; ++i) numbers.push_back(static_cast<int>(std::nearbyint(values[i] * (1 / scale))));
  return {numbers, scale};
}

/// `matrix` with 0 in place of what lies between two whole numbers of its row: whether it is rounded up or
/// down depends on how a compiler fuses operations.
Matrix<float> without_ties(Matrix<float> matrix) {
  for (Index i = 0; i < matrix.rows; ++i) {
    const float scale = rounded(matrix.view().row(i), matrix.width).second;
    for (Index k = 0; k < matrix.width; ++k) {
      const float number = std::abs(matrix(i, k) / scale);
      if (std::abs(number - std::floor(number) - 0.5F) < 1e-3F) matrix(i, k) = 0;
    }
  }
  return matrix;
}

TEST_CASE("weights in int8 multiply like whole numbers, and a row's bits are its own") {
  for (const Index in : {64, 67, 576}) {
    for (const Index out : {5, 64, 200}) {
      CAPTURE(in);
      CAPTURE(out);
      const auto weight = without_ties(random_matrix<float>(out, in, 1));
      const auto bias = random_matrix<float>(1, out, 2);
      const Tensor tensor = tensor_of(weight);
      Tensor bias_tensor = tensor_of(bias);
      bias_tensor.shape.assign(1, out);
      const HostLinear<float> linear({&tensor, 1}, {&bias_tensor, 1}, 2, WeightFormat::int8);
      const auto x = without_ties(random_matrix<float>(300, in, 3, 5));
      Matrix<double> expected(x.rows, out), exact(x.rows, out);
      for (Index i = 0; i < x.rows; ++i) {
        const auto row = rounded(x.view().row(i), in);
        for (Index j = 0; j < out; ++j) {
          const auto own = rounded(weight.view().row(j), in);
          Index sum = 0;
          double product = 0;
          for (Index k = 0; k < in; ++k) {
            sum += row.first[static_cast<std::size_t>(k)] * own.first[static_cast<std::size_t>(k)];
            product += static_cast<double>(x(i, k)) * static_cast<double>(weight(j, k));
          }
          expected(i, j) =
              static_cast<double>(sum) * static_cast<double>(row.second * own.second) + static_cast<double>(bias(0, j));
          exact(i, j) = product + static_cast<double>(bias(0, j));
        }
      }
      Matrix<float> y(x.rows, out, NAN);
      linear.apply(two_threads, x.view(), y.view());
      check_close(y, expected, 1e-5);
      check_close(y, exact, 0.03);
      for (const Index rows : {1, 2, 24, 25, 130}) {
        CAPTURE(rows);
        Matrix<float> part(rows, out), sum(rows, out, 1), expected_sum(rows, out);
        linear.apply(five_threads, x.view().subrows(x.rows - rows, rows), part.view());
        CHECK(std::memcmp(part.values.data(), y.view().row(x.rows - rows), part.values.size() * sizeof(float)) == 0);
        linear.accumulate(one_thread, x.view().subrows(x.rows - rows, rows), sum.view());
        for (std::size_t i = 0; i < part.values.size(); ++i) expected_sum.values[i] = 1 + part.values[i];
        CHECK(sum.same_bits(expected_sum));
      }
    }
  }
}

TEST_CASE("weights in int8 give NaN for a row with NaN, and the other rows what they give else") {
  const auto weight = random_matrix<float>(70, 576, 1);
  const Tensor tensor = tensor_of(weight);
  const HostLinear<float> linear({&tensor, 1}, {}, 2, WeightFormat::int8);
  for (const Index rows : {3, 40}) {
    auto x = random_matrix<float>(rows, 576, 2);
    Matrix<float> before(rows, 70), after(rows, 70);
    linear.apply(two_threads, x.view(), before.view());
    x(1, 500) = NAN;
    linear.apply(two_threads, x.view(), after.view());
    for (Index j = 0; j < 70; ++j) {
      CHECK(std::isnan(after(1, j)));
      CHECK(after(0, j) == before(0, j));
      CHECK(after(2, j) == before(2, j));
    }
  }
}

TEST_CASE_TEMPLATE("rows in panels give what each row gives alone, bit for bit", T, float, Eigen::bfloat16) {
  for (const Index in : {576, 63}) {
    if (in % 2 == 1 && onednn_multiplies<T>()) continue;  // it multiplies any number of rows
    // oneDNN takes the first 256 rows, where it is to multiply. All others are in panels.
    const bool amx = sizeof(T) == 2 && onednn_has_amx();
    const Index rows = 256 + (amx ? few_product_rows : panel_block_rows), first = onednn_multiplies<T>() ? 256 : 0;
    const auto weight = random_matrix<T>(192, in, 1);
    const Tensor tensor = tensor_of(weight);
    const auto x = random_matrix<T>(rows, in, 2);
    const HostLinear<T> linear(std::span(&tensor, 1), {}, 2);
    Matrix<float> together(x.rows, 192), alone(1, 192);  // before they are rounded to T
    linear.apply(two_threads, x.view(), together.view());
    for (Index i = first; i < x.rows; ++i) {
      linear.apply(one_thread, x.view().subrows(i, 1), alone.view());
      CHECK(std::memcmp(alone.values.data(), together.view().row(i), alone.values.size() * sizeof(float)) == 0);
    }
  }
}

#ifdef LLAMA_HAS_ONEDNN
TEST_CASE("oneDNN's sums of many rows in int8 are exact") {
  if (!usable(Isa::avx512_vnni)) {
    MESSAGE("skipped: this processor has no VNNI");
    return;
  }
  CHECK(onednn_multiplies_int8(2) == onednn_has_amx());
  constexpr Index in = 68, out = 130, rows = 40;
  OwnPanels<std::int8_t> weights(in, out, 1);
  std::mt19937 random(1);
  std::uniform_int_distribution<int> number(-127, 127);
  for (Index j = 0; j < out; ++j) {
    for (Index k = 0; k < in; ++k) weights.at(j, k) = static_cast<std::int8_t>(number(random));
  }
  std::vector<std::uint8_t> x(rows * in);
  for (std::uint8_t& value : x) value = static_cast<std::uint8_t>(128 + number(random));
  std::vector<std::int32_t> sums(rows * out), expected(rows * out);
  multiply_int8(weights, x.data(), in, rows, sums.data(), 2);
  for (Index i = 0; i < rows; ++i) {
    for (Index j = 0; j < out; ++j) {
      for (Index k = 0; k < in; ++k) {
        expected[static_cast<std::size_t>(i * out + j)] +=
            x[static_cast<std::size_t>(i * in + k)] * weights.data[weights.place(j, k)];
      }
    }
  }
  CHECK(sums == expected);
}
#endif

TEST_CASE("linear layers accept no rows and reject what does not fit") {
  const auto weight = random_matrix<float>(6, 4, 1);
  const auto other = random_matrix<float>(6, 5, 1);
  const Tensor tensor = tensor_of(weight);
  const HostLinear<float> linear(std::span(&tensor, 1));
  Matrix<float> x(3, 4), y(3, 6), narrow(3, 5);
  linear.apply(one_thread, RowsView<const float>(nullptr, 0, 4), RowsView<float>(nullptr, 0, 6));
  CHECK_THROWS_AS(linear.apply(one_thread, x.view(), narrow.view()), std::invalid_argument);
  CHECK_THROWS_AS(linear.apply(one_thread, x.view().subrows(0, 2), y.view()), std::invalid_argument);
  CHECK_THROWS_AS(linear.apply(one_thread, RowsView<const float>(x.values.data(), 2, 4, 5), y.view().subrows(0, 2)),
                  std::invalid_argument);
  CHECK_THROWS_AS(linear.accumulate(one_thread, narrow.view(), y.view()), std::invalid_argument);
  const std::vector<Tensor> unequal{tensor, tensor_of(other)};
  CHECK_THROWS_AS(HostLinear<float>{std::span(unequal)}, std::invalid_argument);
  CHECK_THROWS_AS(HostLinear<float>{std::span<const Tensor>()}, std::invalid_argument);
  const std::vector<Tensor> biases{tensor};
  CHECK_THROWS_AS((HostLinear<float>{std::span(&tensor, 1), std::span(biases)}), std::invalid_argument);
}

}  // namespace
}  // namespace llama::test
