#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "examples/llama/kernels/cpu/panels.hpp"
#include "support.hpp"

namespace llama::test {
namespace {

constexpr std::array kernels{Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512_vnni, Isa::avx512_bf16};

constexpr Index most_rows = 200;  // more than a block of rows of `multiply_panels`

/// Random weights in panels, and rows of x.
template <class T>
struct PanelSample {
  using X = std::conditional_t<std::is_same_v<T, std::int8_t>, std::uint8_t, T>;
  using Sum = std::conditional_t<std::is_same_v<T, std::int8_t>, std::int32_t, float>;

  OwnPanels<T> panels;
  std::vector<T> weights;  // [out x in]
  std::vector<X> x;        // [most_rows x groups * depth], zeros behind `in`
  Index x_width;

  PanelSample(Index in, Index out) : panels(in, out, 2) {
    x_width = panels.groups() * Panels<T>::depth;
    x.resize(static_cast<std::size_t>(most_rows * x_width), X(0));
    std::mt19937 random(static_cast<unsigned>(in));
    const auto any = [&]<class V>(V) {
      if constexpr (std::is_same_v<V, T> && !std::is_same_v<V, std::int8_t>) {
        return static_cast<V>(std::uniform_real_distribution<float>(-1, 1)(random));
      } else {
        return static_cast<V>(random());
      }
    };
    for (Index j = 0; j < out; ++j) {
      for (Index k = 0; k < in; ++k) {
        weights.push_back(any(T()));
        panels.at(j, k) = weights.back();
      }
    }
    for (Index i = 0; i < most_rows; ++i) {
      for (Index k = 0; k < in; ++k) x[static_cast<std::size_t>(i * x_width + k)] = any(X());
    }
  }

  /// The sum of the first `inputs` inputs.
  double expected(Index row, Index output, Index inputs) const {
    double sum = 0;
    for (Index k = 0; k < inputs; ++k) {
      sum += static_cast<double>(x[static_cast<std::size_t>(row * x_width + k)]) *
             static_cast<double>(weights[static_cast<std::size_t>(output * panels.in + k)]);
    }
    return sum;
  }

  /// The sums `[rows x out]` of rows `first` and up.
  std::vector<Sum> run(PanelKernel kernel, Index first, Index rows, int threads) const {
    std::vector<Sum> all(static_cast<std::size_t>(rows * panels.out), Sum(-1));
    const auto bytes = static_cast<Index>(sizeof(X));
    multiply_panels<T>(kernel, panels, reinterpret_cast<const std::byte*>(x.data() + first * x_width), x_width * bytes,
                       rows, threads, [&](Index row, Index count, Index output, Index outputs, const Sum* sums) {
                         for (Index i = 0; i < count; ++i) {
                           std::copy_n(sums + i * Panels<T>::width, outputs,
                                       all.data() + (row + i) * panels.out + output);
                         }
                       });
    return all;
  }
};

/// Calls `check` with each kernel that this processor can run, of all instruction sets and sizes of the first cache.
template <class T, class Check>
void for_kernels(const Check& check) {
  for (const Isa best : kernels) {
    for (const Index first_cache : {32 * 1024, 48 * 1024}) {
      const PanelKernel kernel = panel_kernel<T>(best, first_cache);
      if (first_cache > 32 * 1024 && kernel == panel_kernel<T>(best, 32 * 1024)) continue;
      CAPTURE(static_cast<int>(best));
      CAPTURE(first_cache);
      check(kernel);
    }
  }
}

template <class T>
void check_kernel(PanelKernel kernel) {
  const std::vector<std::pair<Index, Index>> shapes{{576, 192}, {258, 96}, {64, 64}, {2, 1}, {67, 33}, {4, 200}};
  for (const auto& shape : shapes) {
    const Index in = shape.first, out = shape.second;
    const PanelSample<T> sample(in, out);
    CAPTURE(in);
    CAPTURE(out);
    // 1 to 25, then every 35th.
    for (Index rows = 1; rows <= most_rows; rows += rows <= few_product_rows ? 1 : 35) {
      CAPTURE(rows);
      const auto sums = sample.run(kernel, 0, rows, 1);
      double worst = 0;
      for (Index i = 0; i < rows; ++i) {
        for (Index j = 0; j < out; ++j) {
          const double error =
              std::abs(static_cast<double>(sums[static_cast<std::size_t>(i * out + j)]) - sample.expected(i, j, in));
          worst = error <= worst ? worst : error;
        }
      }
      CHECK(worst <= (std::is_same_v<T, std::int8_t> ? 0 : 1e-4));
      for (const int threads : {2, 3, 7}) CHECK(sample.run(kernel, 0, rows, threads) == sums);
      const auto last = sample.run(kernel, rows - 1, 1, 1);
      CHECK(std::memcmp(last.data(), sums.data() + (rows - 1) * out, last.size() * sizeof(last[0])) == 0);
    }
  }
}

/// Rows that lie apart, in memory that ends with the last one. What lies behind a row is NaN, or 255, and the weights
/// that it would meet are not zero.
template <class T>
void check_rows_apart(PanelKernel kernel) {
  using Sample = PanelSample<T>;
  using X = typename Sample::X;
  constexpr Index out = Panels<T>::width, gap = 4 * Panels<T>::depth;
  constexpr bool whole_numbers = std::is_same_v<T, std::int8_t>;
  const X between = whole_numbers ? static_cast<X>(255) : std::numeric_limits<X>::quiet_NaN();
  for (const Index groups : {1, 7, 48, 49, 64, 72, 131, 300}) {
    CAPTURE(groups);
    const Index width = groups * Panels<T>::depth, stride = width + gap;
    const Sample sample(stride, out);
    std::vector<double> expected;
    for (Index i = 0; i < few_product_rows * out; ++i) expected.push_back(sample.expected(i / out, i % out, width));
    for (Index rows = 1; rows <= few_product_rows; ++rows) {
      CAPTURE(rows);
      std::vector<X> x(static_cast<std::size_t>(rows * stride - gap), between);
      for (Index i = 0; i < rows; ++i) {
        std::copy_n(sample.x.begin() + i * sample.x_width, width, x.begin() + i * stride);
      }
      alignas(64) std::array<typename Sample::Sum, few_product_rows * out> sums;
      kernel(sample.panels.panel(0), groups, reinterpret_cast<const std::byte*>(x.data()),
             stride * static_cast<Index>(sizeof(X)), rows, 0, out, sums.data());
      Index wrong = 0;
      for (std::size_t i = 0; i < static_cast<std::size_t>(rows * out); ++i) {
        const bool right = std::abs(static_cast<double>(sums[i]) - expected[i]) <= (whole_numbers ? 0 : 1e-4);
        wrong += right ? 0 : 1;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE_TEMPLATE("rows times panels are the sums, and a row's bits are its own", T, float, Eigen::bfloat16,
                   std::int8_t) {
  for_kernels<T>([](PanelKernel kernel) { check_kernel<T>(kernel); });
}

TEST_CASE_TEMPLATE("what lies behind a row reaches no sum", T, float, Eigen::bfloat16, std::int8_t) {
  for_kernels<T>([](PanelKernel kernel) { check_rows_apart<T>(kernel); });
}

}  // namespace
}  // namespace llama::test
