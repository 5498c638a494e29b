#include "examples/llama/kernels/cpu/pointwise.hpp"

#include <algorithm>
#include <cmath>

#include "examples/llama/kernels/cpu/for_rows.hpp"
#include "examples/llama/kernels/cpu/rounding.hpp"

namespace llama {
namespace {

/// Elements that are held in float at once: small enough for the first cache, and on the stack.
constexpr Index block = 512;
using Block = Eigen::Array<float, block, 1>;

/// Calls `body(at, count)` for the blocks of [0, width).
template <class Body>
void for_blocks(Index width, const Body& body) {
  for (Index at = 0; at < width; at += block) body(at, std::min(block, width - at));
}

/// As many elements as `weight` has, over their root mean square; `to` may be `from`.
template <class T>
void normalize(const T* from, std::span<const float> weight, float epsilon, T* to) {
  const Index width = std::ssize(weight);
  float squares = 0;
  for_blocks(width, [&](Index at, Index count) {
    Block part;
    widen(from + at, count, part.data());
    squares += part.head(count).square().sum();
  });
  const float factor = 1 / std::sqrt(squares / static_cast<float>(width) + epsilon);
  for (Index j = 0; j < width; ++j) {
    to[j] = round_to<T>(widen(from[j]) * factor * weight[static_cast<std::size_t>(j)]);
  }
}

void check(const char* what, bool fits) {
  if (!fits) fail(what, ": the shapes of the arguments do not fit each other");
}

void check_tokens(const char* what, std::span<const std::int32_t> tokens, Index vocab) {
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= vocab) fail(what, ": token ", token, " is out of range 0 to ", vocab - 1);
  }
}

}  // namespace

template <class T>
void rms_norm(lazyllm::cpu::Context& context, RowsView<const T> x, std::span<const float> weight, float epsilon,
              RowsView<T> out) {
  check("rms_norm", x.rows == out.rows && x.width == out.width && x.width == std::ssize(weight));
  for_rows(context, x.rows, x.width, [&](Index i) { normalize(x.row(i), weight, epsilon, out.row(i)); });
}

template <class T>
void rms_norm_heads(lazyllm::cpu::Context& context, std::span<const float> weight, float epsilon, RowsView<T> heads) {
  const Index head_dim = std::ssize(weight);
  check("rms_norm_heads", head_dim > 0 && heads.width % head_dim == 0);
  for_rows(context, heads.rows, heads.width, [&](Index i) {
    for (T* head = heads.row(i); head != heads.row(i) + heads.width; head += head_dim) {
      normalize(head, weight, epsilon, head);
    }
  });
}

template <class T>
void swiglu(lazyllm::cpu::Context& context, RowsView<const T> gate_up, RowsView<T> out) {
  check("swiglu", gate_up.rows == out.rows && gate_up.width == 2 * out.width);
  for_rows(context, out.rows, out.width, [&](Index i) {
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
void add(lazyllm::cpu::Context& context, RowsView<const float> x, RowsView<T> y) {
  check("add", x.rows == y.rows && x.width == y.width);
  for_rows(context, y.rows, y.width, [&](Index i) {
    const float* const from = x.row(i);
    T* const to = y.row(i);
    for (Index j = 0; j < y.width; ++j) to[j] = round_to<T>(widen(to[j]) + from[j]);
  });
}

template <class T>
void embed(lazyllm::cpu::Context& context, const Tensor& table, std::span<const std::int32_t> tokens, RowsView<T> out) {
  check("embed", table.shape.size() == 2 && out.rows == std::ssize(tokens) && out.width == table.shape[1]);
  check_tokens("embed", tokens, table.shape[0]);
  for_rows(context, out.rows, out.width, [&](Index i) {
    const Index first = tokens[static_cast<std::size_t>(i)] * out.width;
    for_blocks(out.width, [&](Index at, Index count) {
      Block row;
      to_float(table, first + at, std::span(row.data(), static_cast<std::size_t>(count)));
      round_to(row.data(), count, out.row(i) + at);
    });
  });
}

void log_probabilities(lazyllm::cpu::Context& context, RowsView<const float> logits,
                       std::span<const std::int32_t> tokens, std::span<float> out) {
  check("log_probabilities", logits.rows == std::ssize(tokens) && tokens.size() == out.size());
  check_tokens("log_probabilities", tokens, logits.width);
  for_rows(context, logits.rows, logits.width, [&](Index i) {
    const auto at = static_cast<std::size_t>(i);
    const float* const row = logits.row(i);
    const float highest = *std::max_element(row, row + logits.width);
    double sum = 0;
    for (Index j = 0; j < logits.width; ++j) sum += std::exp(row[j] - highest);
    out[at] = row[tokens[at]] - highest - static_cast<float>(std::log(sum));
  });
}

#define LLAMA_INSTANTIATE(T)                                                                                     \
  template void rms_norm(lazyllm::cpu::Context&, RowsView<const T>, std::span<const float>, float, RowsView<T>); \
  template void rms_norm_heads(lazyllm::cpu::Context&, std::span<const float>, float, RowsView<T>);              \
  template void swiglu(lazyllm::cpu::Context&, RowsView<const T>, RowsView<T>);                                  \
  template void add(lazyllm::cpu::Context&, RowsView<const float>, RowsView<T>);                                 \
  template void embed(lazyllm::cpu::Context&, const Tensor&, std::span<const std::int32_t>, RowsView<T>);
LLAMA_INSTANTIATE(float)
LLAMA_INSTANTIATE(Eigen::bfloat16)
#undef LLAMA_INSTANTIATE

}  // namespace llama
