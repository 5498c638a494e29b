#include <cmath>
#include <numbers>
#include <numeric>
#include <variant>

#include "examples/llama/kernels/cpu/rotary.hpp"
#include "support.hpp"

namespace llama::test {
namespace {

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
        const auto rotated = run(
            x, [&](lazyllm::cpu::Context& context, RowsView<T> out) { rotate(context, positions, table.view(), out); });
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

TEST_CASE_TEMPLATE("K and V of ragged sequences get to their positions, K rotated; nothing else is written", T, float,
                   Eigen::bfloat16) {
  const AttentionShape shape{4, 2, 6};
  constexpr Index capacity = 40, layers = 3, kv_width = 12;
  RotaryTable table(shape.head_dim, 500, NoRopeScaling{}, false);
  table.reserve(capacity);
  lazyllm::DensePlan plans;
  const std::vector<lazyllm::DensePlan::Extent> extents{{0, 7}, {11, 20}};  // tokens before and of the step
  plans.start(extents);
  const lazyllm::LayerPlan layer_plan = plans.layer(0, layers);
  const auto key_values = random_matrix<T>(27, 2 * kv_width, 1);

  for (const int threads : {1, 3}) {
    std::vector<Matrix<T>> memory(4, Matrix<T>(layers * shape.kv_heads * capacity, shape.head_dim, static_cast<T>(7)));
    std::vector<KvView<T>> views;
    for (std::size_t s = 0; s < 2; ++s) {
      views.push_back({.keys = memory[2 * s].values.data(),
                       .values = memory[2 * s + 1].values.data(),
                       .layer_stride = shape.kv_heads * capacity * shape.head_dim,
                       .head_stride = capacity * shape.head_dim,
                       .position_stride = shape.head_dim,
                       .capacity = capacity});
    }
    lazyllm::cpu::Context context(threads);
    HostPlan<T> plan(shape);
    plan.update(context, layer_plan, views);
    write_key_values(context, plan, 1, table.view(), key_values.view());

    auto expected = std::vector<Matrix<T>>(4, Matrix<T>(memory[0].rows, shape.head_dim, static_cast<T>(7)));
    for (Index s = 0, row = 0; s < 2; ++s) {
      for (const Position position : layer_plan.sequence(s).positions) {
        for (Index head = 0; head < shape.kv_heads; ++head) {
          const Index to = (shape.kv_heads + head) * capacity + position;
          auto& keys = expected[static_cast<std::size_t>(2 * s)];
          auto& values = expected[static_cast<std::size_t>(2 * s + 1)];
          for (Index i = 0; i < shape.head_dim; ++i) {
            keys(to, i) = key_values(row, head * shape.head_dim + i);
            values(to, i) = key_values(row, kv_width + head * shape.head_dim + i);
          }
          rotate(context, Positions(&position, 1), table.view(), keys.view().subrows(to, 1));
        }
        ++row;
      }
    }
    for (std::size_t i = 0; i < memory.size(); ++i) CHECK(memory[i].same_bits(expected[i]));
  }
}

TEST_CASE("rotation rejects what does not fit") {
  lazyllm::cpu::Context context;
  Matrix<float> x(2, 6), wide(2, 7);
  CHECK_THROWS_AS(RotaryTable(7, 1e4, NoRopeScaling{}, false), std::invalid_argument);
  RotaryTable table(6, 1e4, NoRopeScaling{}, false);
  table.reserve(4);
  const std::vector<Position> far{1, 4}, one{1};
  CHECK_THROWS_AS(rotate(context, far, table.view(), x.view()), std::invalid_argument);
  CHECK_THROWS_AS(rotate(context, one, table.view(), x.view()), std::invalid_argument);
  CHECK_THROWS_AS(rotate(context, one, table.view(), wide.view()), std::invalid_argument);

  HostPlan<float> plan({2, 1, 6});
  lazyllm::DensePlan plans;
  plans.start(0, 2);
  Matrix<float> memory(8, 6);
  std::vector<KvView<float>> views{{.keys = memory.values.data(),
                                    .values = memory.values.data(),
                                    .layer_stride = 48,
                                    .head_stride = 48,
                                    .position_stride = 6,
                                    .capacity = 1}};
  CHECK_THROWS_WITH_AS(plan.update(context, plans.layer(0, 2), views), doctest::Contains("out of range 0 to 1"),
                       std::invalid_argument);
  CHECK_THROWS_AS(plan.update(context, plans.layer(0, 2), {}), std::invalid_argument);
  views[0].capacity = 8;
  plan.update(context, plans.layer(0, 2), views);
  CHECK_THROWS_AS(rotate(context, plan, table.view(), x.view()), std::invalid_argument);  // 6, not 12 elements
  CHECK_THROWS_AS(write_key_values(context, plan, 0, table.view(), RowsView<const float>(x.view())),
                  std::invalid_argument);
}

}  // namespace
}  // namespace llama::test
