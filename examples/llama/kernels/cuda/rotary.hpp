#pragma once

#include <lazyllm/cuda.cuh>

#include "examples/llama/kernels/cuda/device_plan.hpp"
#include "examples/llama/library.hpp"

namespace llama {

/// The memory of a `RotaryTable` copied to the device as it is, so that the angles are the CPU's: the
/// `positions * head_dim` floats from `table.cosines(0)` on. Trivially copyable; nothing is owned.
struct RotaryView {
  const float* angles = nullptr;  ///< `[positions x (cosines, sines)]`, each `[head_dim / 2]`
  Index positions = 0;
  Index head_dim = 0;
  bool interleaved = false;  ///< rotates the elements (2i, 2i+1) of a head, else (i, i + head_dim / 2)
};

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

#define LAZYLLM_DECLARE(T)                                                                                       \
  extern template void rotate(lazyllm::cuda::Context&, const DevicePlan<T>&, const RotaryView&, RowsView<T>);    \
  extern template void write_key_values(lazyllm::cuda::Context&, const DevicePlan<T>&, Index, const RotaryView&, \
                                        RowsView<const T>);
LAZYLLM_DECLARE(float)
LAZYLLM_DECLARE(__half)
LAZYLLM_DECLARE(__nv_bfloat16)
#undef LAZYLLM_DECLARE

}  // namespace llama
