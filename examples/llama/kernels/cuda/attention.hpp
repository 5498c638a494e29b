#pragma once

#include <lazyllm/cuda_context.hpp>

#include "examples/llama/kernels/cuda/device_plan.hpp"
#include "examples/llama/library.hpp"

namespace llama {

/// Enqueues out = softmax(scale Q K^T, visible keys only) V of one layer, for all sequences of `plan`, with float sums
/// and no `[rows x keys]` matrix. Row i of a sequence sees the tokens `keys[0 .. key_limits[i])`: the three masks are
/// the same to it. K and V of no other token are read. `queries` and `out` are `[plan.query_rows() x heads *
/// head_dim]`, rotated, on the device and without gaps within a row; `out` may not be `queries`.
///
/// 16-bit types with head dimensions 32, 64, 96 and 128 run on tensor cores, if heads and rows lie at multiples of 16
/// bytes; all else, float too, on a plain kernel for even head dimensions up to 256. Sequences with few queries are cut
/// into parts of the keys, so that one long sequence fills the device; cut the same on every device and in every batch.
///
/// The partial results of cut sequences take scratch memory of the context. Throws `std::invalid_argument` when the
/// shapes do not fit each other, `cuda_error` when there is no memory or a launch fails.
template <class T>
void attention(lazyllm::cuda::Context& context, const DevicePlan<T>& plan, Index layer, RowsView<const T> queries,
               RowsView<T> out);

#define LLAMA_DECLARE(T) \
  extern template void attention(lazyllm::cuda::Context&, const DevicePlan<T>&, Index, RowsView<const T>, RowsView<T>);
LLAMA_DECLARE(float)
LLAMA_DECLARE(__half)
LLAMA_DECLARE(__nv_bfloat16)
#undef LLAMA_DECLARE

}  // namespace llama
