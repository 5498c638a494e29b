#include "examples/llama/kernels/pointwise.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <variant>

#include "examples/llama/kernels/rounding.hpp"
#include "examples/llama/library.hpp"

namespace llama {
namespace {

/// Below this many elements starting the threads costs more than the work.
constexpr Index least_parallel = 16384;

/// Elements that are held in float at once: small enough for the first cache, and on the stack.
constexpr Index block = 512;
using Block = Eigen::Array<float, block, 1>;

template <class Body>
void for_rows(Index rows, Index width, [[maybe_unused]] int threads, const Body& body) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && rows * width >= least_parallel)
  for (Index i = 0; i < rows; ++i) body(i);
}

/// Calls `body(at, count)` for the blocks of [0, width).
template <class Body>
void for_blocks(Index width, const Body& body) {
  for (Index at = 0; at < width; at += block) body(at, std::min(block, width - at));
}

void check(const char* what, bool fits) {
  if (!fits) fail(what, ": the shapes of the arguments do not fit each other");
}

double scaled(double frequency, const NoRopeScaling&) { return frequency; }
double scaled(double frequency, const LinearRopeScaling& scaling) { return frequency / scaling.factor; }
double scaled(double frequency, const Llama3RopeScaling& scaling) {
  const double turns =
      static_cast<double>(scaling.original_max_position_embeddings) * frequency / (2 * std::numbers::pi);
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  if (turns > scaling.high_freq_factor) return frequency;
  const double kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - kept) * frequency / scaling.factor + kept * frequency;
}

template <class T>
void rotate_head(T* head, const float* cosines, const float* sines, Index half, Index step, Index pair) {
  for (Index i = 0; i < half; ++i) {
    const float x = widen(head[i * step]);
    const float y = widen(head[i * step + pair]);
    head[i * step] = round_to<T>(x * cosines[i] - y * sines[i]);
    head[i * step + pair] = round_to<T>(x * sines[i] + y * cosines[i]);
  }
}

}  // namespace

template <class T>
void rms_norm(RowsView<const T> x, std::span<const float> weight, float epsilon, RowsView<T> out, int threads) {
  check("rms_norm", x.rows == out.rows && x.width == out.width && x.width == std::ssize(weight));
  for_rows(x.rows, x.width, threads, [&](Index i) {
    float squares = 0;
    for_blocks(x.width, [&](Index at, Index count) {
      Block part;
      widen(x.row(i) + at, count, part.data());
      squares += part.head(count).square().sum();
    });
    const float factor = 1 / std::sqrt(squares / static_cast<float>(x.width) + epsilon);
    const T* const from = x.row(i);
    T* const to = out.row(i);
    for (Index j = 0; j < x.width; ++j) {
      to[j] = round_to<T>(widen(from[j]) * factor * weight[static_cast<std::size_t>(j)]);
    }
  });
}

RotaryTable::RotaryTable(Index head_dim, double theta, const RopeScaling& scaling, bool interleaved)
    : interleaved_(interleaved) {
  if (head_dim < 2 || head_dim % 2 != 0)
    fail("RotaryTable: head width ", head_dim, " is out of range, even and at least 2");
  for (Index i = 0; i < head_dim; i += 2) {
    const double frequency = std::pow(theta, -static_cast<double>(i) / static_cast<double>(head_dim));
    frequencies_.push_back(std::visit([&](const auto& kind) { return scaled(frequency, kind); }, scaling));
  }
}

void RotaryTable::reserve(Index positions) {
  if (positions <= positions_) return;
  const Index half = head_dim() / 2;
  angles_.resize(static_cast<std::size_t>(positions * head_dim()));
  for (Index position = positions_; position < positions; ++position) {
    float* const row = angles_.data() + position * head_dim();
    for (Index i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * frequencies_[static_cast<std::size_t>(i)];
      row[i] = static_cast<float>(std::cos(angle));
      row[half + i] = static_cast<float>(std::sin(angle));
    }
  }
  positions_ = positions;
}

template <class T>
void rotate(RowsView<T> rows, Positions positions, const RotaryTable& table, int threads) {
  const Index width = table.head_dim();
  check("rotate", rows.rows == std::ssize(positions) && rows.width % width == 0);
  for (const Position position : positions) {
    if (position < 0 || position >= table.positions())
      fail("rotate: position ", position, " is out of range 0 to ", table.positions() - 1);
  }
  for_rows(rows.rows, rows.width, threads, [&](Index i) {
    const Index position = positions[static_cast<std::size_t>(i)];
    for (T* head = rows.row(i); head != rows.row(i) + rows.width; head += width) {
      // Constant steps let the compiler vectorise each way of pairing.
      if (table.interleaved()) {
        rotate_head(head, table.cosines(position), table.sines(position), width / 2, 2, 1);
      } else {
        rotate_head(head, table.cosines(position), table.sines(position), width / 2, 1, width / 2);
      }
    }
  });
}

template <class T>
void swiglu(RowsView<const T> gate_up, RowsView<T> out, int threads) {
  check("swiglu", gate_up.rows == out.rows && gate_up.width == 2 * out.width);
  for_rows(out.rows, out.width, threads, [&](Index i) {
    for_blocks(out.width, [&](Index at, Index count) {
      Block gate, up;
      widen(gate_up.row(i) + at, count, gate.data());
      widen(gate_up.row(i) + out.width + at, count, up.data());
      gate.head(count) *= up.head(count) / (1 + (-gate.head(count)).exp());
      round_to(gate.data(), count, out.row(i) + at);
    });
  });
}

template <class T>
void embed(const Tensor& table, std::span<const std::int32_t> tokens, RowsView<T> out, int threads) {
  check("embed", table.shape.size() == 2 && out.rows == std::ssize(tokens) && out.width == table.shape[1]);
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= table.shape[0])
      fail("embed: token ", token, " is out of range 0 to ", table.shape[0] - 1);
  }
  for_rows(out.rows, out.width, threads, [&](Index i) {
    const Index first = tokens[static_cast<std::size_t>(i)] * out.width;
    for_blocks(out.width, [&](Index at, Index count) {
      Block row;
      to_float(table, first + at, std::span(row.data(), static_cast<std::size_t>(count)));
      round_to(row.data(), count, out.row(i) + at);
    });
  });
}

#define LAZYLLM_INSTANTIATE(T)                                                                \
  template void rms_norm(RowsView<const T>, std::span<const float>, float, RowsView<T>, int); \
  template void rotate(RowsView<T>, Positions, const RotaryTable&, int);                      \
  template void swiglu(RowsView<const T>, RowsView<T>, int);                                  \
  template void embed(const Tensor&, std::span<const std::int32_t>, RowsView<T>, int);
LAZYLLM_INSTANTIATE(float)
LAZYLLM_INSTANTIATE(Eigen::bfloat16)
#undef LAZYLLM_INSTANTIATE

}  // namespace llama
