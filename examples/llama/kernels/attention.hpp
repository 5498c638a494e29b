#pragma once

#include <Eigen/Core>
#include <span>

#include "examples/llama/kernels/attention_shape.hpp"
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

/// Scratch memory of `attention`. Grows with the threads and the head width; with the number of keys only for a few
/// rows, by one row of floats for every 512 keys. Serves one call at a time.
class AttentionWorkspace {
 public:
  /// `count` floats, uninitialised, aligned for Eigen. Valid until the next call.
  float* reserve(Index count) {
    if (count > floats_.size()) floats_.resize(count);
    return floats_.data();
  }

 private:
  Eigen::ArrayXf floats_;
};

/// out = softmax(scale Q K^T, visible keys only) V, with float sums, in blocks: no `[rows x keys]` matrix.
/// `queries` and `out` are `[rows x heads * head_dim]`. Row i sees the tokens `keys[0 .. key_limits[i])`; K and V of
/// no other token are read. `keys` are ascending positions; `key_limits` `[rows]` ascend within 1 .. keys.size(). A
/// row's result does not depend on `threads`, and on no other row but through their number: a call with at most 8 query
/// rows per key/value head (4 with AVX, 2 with SSE) sums up in another order than one with more. Within either kind a
/// row depends on its query and the keys it sees only, bit for bit.
/// Throws `std::invalid_argument` when the shapes do not fit each other or a limit is out of range.
template <class T>
void attention(const AttentionShape& shape, RowsView<const T> queries, const KeyValues<T>& cache, Positions keys,
               Positions key_limits, RowsView<T> out, int threads, AttentionWorkspace& workspace);

extern template void attention(const AttentionShape&, RowsView<const float>, const KeyValues<float>&, Positions,
                               Positions, RowsView<float>, int, AttentionWorkspace&);
extern template void attention(const AttentionShape&, RowsView<const Eigen::bfloat16>,
                               const KeyValues<Eigen::bfloat16>&, Positions, Positions, RowsView<Eigen::bfloat16>, int,
                               AttentionWorkspace&);

}  // namespace llama
