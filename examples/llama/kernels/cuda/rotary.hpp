#pragma once

#include <lazyllm/cuda_context.hpp>

#include "examples/llama/kernels/cuda/device_plan.hpp"
#include "examples/llama/kernels/rotary_table.hpp"
#include "examples/llama/library.hpp"

namespace llama {

/// Enqueues the rotation of queries `[plan.query_rows() x heads * head_dim]` in place, row i to
/// `plan.query_positions()[i]`. Throws `std::invalid_argument` when the shapes do not fit each other or `table` is
/// too short for the caches' tokens.
template <class T>
void rotate(lazyllm::cuda::Context& context, const DevicePlan<T>& plan, const RotaryView& table, RowsView<T> queries);

/// Enqueues the writing of the rows' K and V to the caches of `plan` in a layer, each at its position, K rotated on the
/// way. `key_values` `[plan.rows() x 2 * kv_heads * head_dim]` has all heads of K, then all of V. Throws as `rotate`.
template <class T>
void write_key_values(lazyllm::cuda::Context& context, const DevicePlan<T>& plan, Index layer, const RotaryView& table,
                      RowsView<const T> key_values);

#define LLAMA_DECLARE(T)                                                                                         \
  extern template void rotate(lazyllm::cuda::Context&, const DevicePlan<T>&, const RotaryView&, RowsView<T>);    \
  extern template void write_key_values(lazyllm::cuda::Context&, const DevicePlan<T>&, Index, const RotaryView&, \
                                        RowsView<const T>);
LLAMA_DECLARE(float)
LLAMA_DECLARE(__half)
LLAMA_DECLARE(__nv_bfloat16)
#undef LLAMA_DECLARE

}  // namespace llama
