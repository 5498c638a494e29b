#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>
#include <vector>

#include "examples/llama/kernels/cpu/block_kernels.hpp"
#include "examples/llama/kernels/cpu/rounding.hpp"
#include "support.hpp"

namespace llama::test {
namespace {

constexpr Index rows = 16;
constexpr Index keys = 48;
constexpr float infinity = std::numeric_limits<float>::infinity();

/// A block of scores in the middle of a row's keys: every number of visible keys, some rows with sums from before.
struct BlockSample {
  Matrix<float> scores = random_matrix<float>(rows, keys, 1, 40);
  std::array<Index, rows> visible{0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 47, 48};
  std::array<float, rows> maximum, total, correction;

  BlockSample() {
    for (std::size_t row = 0; row < maximum.size(); ++row) {
      const bool first = row % 3 == 0;
      maximum[row] = first ? -infinity : static_cast<float>(row) - 8;
      total[row] = first ? 0.0f : 2.5f;
      correction[row] = 7;
    }
    scores(5, 4) = -infinity;
    scores(9, 3) = -1e30f;
  }

  ScoreBlock block() {
    return {.rows = rows,
            .keys = keys,
            .scores = scores.values.data(),
            .visible = visible.data(),
            .scale = 0.3f,
            .maximum = maximum.data(),
            .total = total.data(),
            .correction = correction.data()};
  }
};

TEST_CASE("weights of a block, the obvious way, by each instruction set") {
  const BlockSample before;
  for (const BlockKernels* const kernels : usable_block_kernels()) {
    CAPTURE(kernels->isa);
    BlockSample exact, rounded;
    Matrix<Eigen::bfloat16> weights(rows, keys, Eigen::bfloat16(NAN));
    kernels->weigh(exact.block());
    kernels->weigh_rounded(rounded.block(), reinterpret_cast<std::uint16_t*>(weights.values.data()));
    for (Index row = 0; row < rows; ++row) {
      CAPTURE(row);
      const auto at = static_cast<std::size_t>(row);
      const Index visible = before.visible[at];
      double largest = before.maximum[at];
      for (Index k = 0; k < visible; ++k) largest = std::max(largest, 0.3 * static_cast<double>(before.scores(row, k)));
      double total = visible == 0 ? before.total[at] : before.total[at] * std::exp2(before.maximum[at] - largest);
      for (Index k = 0; k < keys; ++k) {
        const double weight = k < visible ? std::exp2(0.3 * static_cast<double>(before.scores(row, k)) - largest) : 0;
        total += weight;
        CHECK(exact.scores(row, k) == doctest::Approx(weight).epsilon(1e-5));
        CHECK(widen(weights(row, k)) == doctest::Approx(weight).epsilon(0.004));
        if (k >= visible || before.scores(row, k) < -1e3f) {
          CHECK(exact.scores(row, k) == 0);
          CHECK(widen(weights(row, k)) == 0);
        }
      }
      for (const BlockSample* const after : {&exact, &rounded}) {
        CHECK(after->total[at] == doctest::Approx(total).epsilon(1e-5));
        if (visible == 0) {
          CHECK(after->maximum[at] == before.maximum[at]);
          CHECK(after->correction[at] == 7);
        } else {
          CHECK(after->maximum[at] == doctest::Approx(largest).epsilon(1e-6));
          CHECK(after->correction[at] == doctest::Approx(std::exp2(before.maximum[at] - largest)).epsilon(1e-5));
        }
      }
    }
  }
}

TEST_CASE("a score that is not a number shows, by each instruction set") {
  for (const BlockKernels* const kernels : usable_block_kernels()) {
    CAPTURE(kernels->isa);
    BlockSample sample;
    sample.scores(15, 20) = NAN;
    kernels->weigh(sample.block());
    CHECK(std::isnan(sample.total[15]));
    CHECK(!std::isnan(sample.total[14]));
  }
}

TEST_CASE("sums of a block are corrected and added, by each instruction set") {
  constexpr Index width = 32;
  const auto added = random_matrix<float>(rows, width, 2, 1), start = random_matrix<float>(rows, width, 3, 1);
  for (const BlockKernels* const kernels : usable_block_kernels()) {
    CAPTURE(kernels->isa);
    BlockSample sample;
    kernels->weigh(sample.block());
    auto sums = start;
    kernels->accumulate(sample.block(), width, added.values.data(), sums.values.data());
    for (Index row = 0; row < rows; ++row) {
      for (Index i = 0; i < width; ++i) {
        const auto at = static_cast<std::size_t>(row);
        const float expected =
            sample.visible[at] == 0 ? start(row, i) : start(row, i) * sample.correction[at] + added(row, i);
        CHECK(sums(row, i) == doctest::Approx(expected).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("products of blocks, the obvious way, by each instruction set") {
  for (const Index columns : {16, 48, 64, 80}) {
    constexpr Index depth = 33, stride = 100;
    const auto a = random_matrix<float>(rows, depth, 4, 1), b = random_matrix<float>(depth, stride, 5, 1);
    for (const BlockKernels* const kernels : usable_block_kernels()) {
      CAPTURE(kernels->isa);
      for (Index height = 1; height <= rows; ++height) {  // each way to share them out to tiles
        Matrix<float> c(rows, columns, NAN);
        kernels->multiply(height, depth, columns, a.values.data(), b.values.data(), stride, c.values.data());
        for (Index row = 0; row < height; ++row) {
          for (Index column = 0; column < columns; ++column) {
            double expected = 0;
            for (Index k = 0; k < depth; ++k) {
              expected += static_cast<double>(a(row, k)) * static_cast<double>(b(k, column));
            }
            CHECK(c(row, column) == doctest::Approx(expected).epsilon(1e-4));
          }
        }
      }
    }
  }
}

TEST_CASE("rows become columns, by each instruction set") {
  const auto from = random_matrix<float>(32, 48, 6, 1);
  for (const BlockKernels* const kernels : usable_block_kernels()) {
    CAPTURE(kernels->isa);
    Matrix<float> to(48, 40, 7);
    kernels->transpose(32, 48, from.values.data(), to.values.data(), 40);
    for (Index column = 0; column < 48; ++column) {
      for (Index row = 0; row < 40; ++row) CHECK(to(column, row) == (row < 32 ? from(row, column) : 7));
    }
  }
}

TEST_CASE_TEMPLATE("products with rows anywhere, the obvious way, by each instruction set", T, float, Eigen::bfloat16) {
  using Element = std::conditional_t<std::is_same_v<T, float>, float, std::uint16_t>;
  constexpr Index count = 48, stride = 50, most = 17;
  for (const Index width : {16, 48, 64, 80, 96, 256, 288}) {
    const auto from = random_matrix<T>(count, width, 7, 1);
    const auto queries = random_matrix<float>(most, width, 8, 1), weights = random_matrix<float>(most, stride, 9, 1);
    std::vector<const Element*> places;
    for (Index i = 0; i < count + rows_ahead; ++i) {
      places.push_back(reinterpret_cast<const Element*>(from.view().row(i * 7 % count)));
    }
    const std::vector<const Element*> summed_places(places.begin(), places.end() - 1);
    const auto element = [&](Index i, Index k) { return static_cast<double>(from(i * 7 % count, k)); };
    for (const BlockKernels* const kernels : usable_block_kernels()) {
      CAPTURE(kernels->isa);
      const bool rounds = std::is_same_v<T, Eigen::bfloat16> && std::string_view(kernels->isa) == "avx512_bf16" &&
                          width % 32 == 0 && width <= 256;
      const auto used = [&](float value) {
        return static_cast<double>(rounds ? static_cast<float>(Eigen::bfloat16(value)) : value);
      };
      Matrix<float> all_scores(most, stride, 7), all_sums(most, width, 7);
      for (const Index number : {most, Index{12}, Index{7}, Index{3}, Index{1}}) {
        CAPTURE(number);
        Matrix<float> scores(most, stride, 7), sums(most, width, 7);
        row_kernels<Element>(*kernels).score(number, width, count, queries.values.data(), places.data(),
                                             scores.values.data(), stride);
        row_kernels<Element>(*kernels).sum(number, width, count - 1, weights.values.data(), stride,
                                           summed_places.data(), sums.values.data());
        if (number == most) {
          all_scores = scores;
          all_sums = sums;
        }
        for (Index query = 0; query < most; ++query) {
          for (Index i = 0; i < stride; ++i) {
            double expected = 0;
            for (Index k = 0; k < width && i < count; ++k) {
              expected += used(queries(query, k)) * element(i, k);
            }
            const bool made = query < number && i < count;
            CHECK(scores(query, i) == doctest::Approx(made ? expected : 7).epsilon(1e-4));
            if (made) CHECK(scores(query, i) == all_scores(query, i));
          }
          for (Index k = 0; k < width; ++k) {
            double expected = 0;
            for (Index i = 0; i < count - 1; ++i) expected += used(weights(query, i)) * element(i, k);
            CHECK(sums(query, k) == doctest::Approx(query < number ? expected : 7).epsilon(1e-4));
            if (query < number) CHECK(sums(query, k) == all_sums(query, k));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace llama::test
