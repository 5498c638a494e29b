#pragma once

#include <Eigen/Core>

#include "examples/llama/kernels/cpu/host_plan.hpp"
#include "examples/llama/kernels/rotary_table.hpp"

namespace llama {

/// Rotates rows `[rows x heads * head_dim]` in place, row i to `positions[i]`. Throws `std::invalid_argument` when the
/// shapes do not fit each other or `table` lacks a position.
template <class T>
void rotate(lazyllm::cpu::Context& context, Positions positions, const RotaryView& table, RowsView<T> rows);

/// Rotates queries `[plan.query_rows() x heads * head_dim]` in place, each row to its position. Throws as above.
template <class T>
void rotate(lazyllm::cpu::Context& context, const HostPlan<T>& plan, const RotaryView& table, RowsView<T> queries);

/// Writes the rows' K and V to the caches of `plan` in a layer, each at its position, K rotated on the way.
/// `key_values` `[plan.rows() x 2 * kv_heads * head_dim]` has all heads of K, then all of V. Throws as above.
template <class T>
void write_key_values(lazyllm::cpu::Context& context, const HostPlan<T>& plan, Index layer, const RotaryView& table,
                      RowsView<const T> key_values);

#define LLAMA_DECLARE(T)                                                                                      \
  extern template void rotate(lazyllm::cpu::Context&, Positions, const RotaryView&, RowsView<T>);             \
  extern template void rotate(lazyllm::cpu::Context&, const HostPlan<T>&, const RotaryView&, RowsView<T>);    \
  extern template void write_key_values(lazyllm::cpu::Context&, const HostPlan<T>&, Index, const RotaryView&, \
                                        RowsView<const T>);
LLAMA_DECLARE(float)
LLAMA_DECLARE(Eigen::bfloat16)
#undef LLAMA_DECLARE

}  // namespace llama
