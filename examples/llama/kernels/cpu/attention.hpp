#pragma once

#include <Eigen/Core>
#include <lazyllm/lazyllm.hpp>

#include "examples/llama/kernels/attention_shape.hpp"
#include "examples/llama/kernels/cpu/host_plan.hpp"
#include "examples/llama/library.hpp"

namespace llama {

/// K and V of one sequence in one layer. Token p's key of head h starts at `keys + p * position_stride + h *
/// head_stride`, its value at the same offset from `values`. Strides count elements.
template <class T>
struct KeyValues {
  const T* keys = nullptr;
  const T* values = nullptr;
  Index position_stride = 0;
  Index head_stride = 0;
};

/// What computes the two matrix products of attention in blocks.
enum class BlockProducts {
  automatic,  ///< oneDNN where the build has it and it is fast on this processor, else own
  own         ///< in float
};

/// out = softmax(scale Q K^T, visible keys only) V of one sequence, with float sums, in blocks: no `[rows x keys]`
/// matrix. `queries` and `out` are `[rows x heads * head_dim]`. Row i sees the tokens `keys[0 .. key_limits[i])`; K and
/// V of no other token are read. `keys` are ascending positions; `key_limits` `[rows]` ascend within 1 .. keys.size().
/// They must be finite. There are several kernels, which sum up in orders of their own: for a few rows, which
/// `few_rows_attention` has, in bf16 another one for some more, and for many rows. Within each kernel a row depends on
/// its query and the keys it sees only, bit for bit, and not on the threads.
///
/// Takes the context's scratch memory. It grows with the threads and the head dimension; with the number of keys only
/// for a few rows, by one row of floats for every 128 to 256 keys. `products` are those for many rows. Throws
/// `std::invalid_argument` when the shapes do not fit each other or a limit is out of range.
template <class T>
void attention(lazyllm::cpu::Context& context, const AttentionShape& shape, const KeyValues<T>& cache, Positions keys,
               Positions key_limits, RowsView<const T> queries, RowsView<T> out,
               BlockProducts products = BlockProducts::automatic);

/// The same of one layer for all sequences of `plan`: `queries` and `out` are `[plan.query_rows() x heads * head_dim]`.
/// Each sequence goes to the kernel for its number of rows; see `few_rows_attention`, too.
template <class T>
void attention(lazyllm::cpu::Context& context, const HostPlan<T>& plan, Index layer, RowsView<const T> queries,
               RowsView<T> out);

#define LLAMA_DECLARE(T)                                                                                        \
  extern template void attention(lazyllm::cpu::Context&, const AttentionShape&, const KeyValues<T>&, Positions, \
                                 Positions, RowsView<const T>, RowsView<T>, BlockProducts);                     \
  extern template void attention(lazyllm::cpu::Context&, const HostPlan<T>&, Index, RowsView<const T>, RowsView<T>);
LLAMA_DECLARE(float)
LLAMA_DECLARE(Eigen::bfloat16)
#undef LLAMA_DECLARE

}  // namespace llama
