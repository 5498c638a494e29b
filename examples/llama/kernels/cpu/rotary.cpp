#include "examples/llama/kernels/cpu/rotary.hpp"

#include <algorithm>

#include "examples/llama/kernels/cpu/for_rows.hpp"
#include "examples/llama/kernels/cpu/rounding.hpp"

namespace llama {
namespace {

template <class T>
void rotate_pairs(T* head, const float* cosines, const float* sines, Index half, Index step, Index pair) {
  for (Index i = 0; i < half; ++i) {
    const float x = widen(head[i * step]);
    const float y = widen(head[i * step + pair]);
    head[i * step] = round_to<T>(x * cosines[i] - y * sines[i]);
    head[i * step + pair] = round_to<T>(x * sines[i] + y * cosines[i]);
  }
}

/// Constant steps let the compiler vectorise each way of pairing.
template <class T>
void rotate_head(const RotaryView& table, Position position, T* head) {
  const Index half = table.head_dim / 2;
  const float* const cosines = table.angles + position * table.head_dim;
  if (table.interleaved) {
    rotate_pairs(head, cosines, cosines + half, half, 2, 1);
  } else {
    rotate_pairs(head, cosines, cosines + half, half, 1, half);
  }
}

void check(const char* what, const RotaryView& table, Positions positions, bool fits) {
  if (!fits) fail(what, ": the shapes of the arguments do not fit each other");
  for (const Position position : positions) {
    if (position < 0 || position >= table.positions)
      fail(what, ": position ", position, " is out of range 0 to ", table.positions - 1);
  }
}

}  // namespace

template <class T>
void rotate(lazyllm::cpu::Context& context, Positions positions, const RotaryView& table, RowsView<T> rows) {
  check("rotate", table, positions, rows.rows == std::ssize(positions) && rows.width % table.head_dim == 0);
  for_rows(context, rows.rows, rows.width, [&](Index i) {
    for (T* head = rows.row(i); head != rows.row(i) + rows.width; head += table.head_dim) {
      rotate_head(table, positions[static_cast<std::size_t>(i)], head);
    }
  });
}

template <class T>
void rotate(lazyllm::cpu::Context& context, const HostPlan<T>& plan, const RotaryView& table, RowsView<T> queries) {
  const AttentionShape& shape = plan.shape();
  check("rotate", table, {},
        queries.rows == plan.query_rows() && queries.width == shape.heads * shape.head_dim &&
            table.head_dim == shape.head_dim);
  for (Index s = 0; s < plan.sequences(); ++s) {
    const auto own = plan.queries(s);
    rotate(context, own.positions, table, queries.subrows(own.first_row, std::ssize(own.positions)));
  }
}

template <class T>
void write_key_values(lazyllm::cpu::Context& context, const HostPlan<T>& plan, Index layer, const RotaryView& table,
                      RowsView<const T> key_values) {
  const AttentionShape& shape = plan.shape();
  const Index kv_width = shape.kv_heads * shape.head_dim;
  const bool fits =
      key_values.rows == plan.rows() && key_values.width == 2 * kv_width && table.head_dim == shape.head_dim;
  for (Index s = 0; s < plan.sequences(); ++s) {
    const lazyllm::SequencePlan part = plan.sequence(s);
    check("write_key_values", table, part.positions, fits);
    const KvView<T>& cache = plan.cache(s);
    for_rows(context, std::ssize(part.positions), key_values.width, [&](Index r) {
      const Position position = part.positions[static_cast<std::size_t>(r)];
      const T* const row = key_values.row(part.first_row + r);
      for (Index head = 0; head < shape.kv_heads; ++head) {
        const Index to = layer * cache.layer_stride + head * cache.head_stride + position * cache.position_stride;
        std::copy_n(row + head * shape.head_dim, shape.head_dim, cache.keys + to);
        rotate_head(table, position, cache.keys + to);
        std::copy_n(row + kv_width + head * shape.head_dim, shape.head_dim, cache.values + to);
      }
    });
  }
}

#define LLAMA_INSTANTIATE(T)                                                                           \
  template void rotate(lazyllm::cpu::Context&, Positions, const RotaryView&, RowsView<T>);             \
  template void rotate(lazyllm::cpu::Context&, const HostPlan<T>&, const RotaryView&, RowsView<T>);    \
  template void write_key_values(lazyllm::cpu::Context&, const HostPlan<T>&, Index, const RotaryView&, \
                                 RowsView<const T>);
LLAMA_INSTANTIATE(float)
LLAMA_INSTANTIATE(Eigen::bfloat16)
#undef LLAMA_INSTANTIATE

}  // namespace llama
