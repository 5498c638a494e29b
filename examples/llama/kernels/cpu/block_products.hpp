#pragma once

#include <Eigen/Core>

#include "examples/llama/base.hpp"
#include "examples/llama/kernels/cpu/block_kernels.hpp"

/// \file
/// The two matrix products of attention in blocks: queries `[rows x width]` with keys to scores `[rows x keys]`,
/// weights with values `[keys x width]` to sums `[rows x width]`. Rows, keys and width are multiples of `block_step`,
/// rows at least `min_rows`; parts of up to `min_part` rows are not halved. Key columns and values lie `padding`
/// elements further apart than they are long. A row's results depend neither on the other rows nor on their number, bit
/// for bit, and keys of weight 0 change nothing.
namespace llama {

constexpr Index max_block_keys = 256;

#ifdef LLAMA_HAS_ONEDNN
/// By oneDNN, with one thread: called where `omp_get_max_threads()` is 1. `S` is `float` or `Eigen::bfloat16`.
template <class S>
struct OneDnnProducts {
  using Element = S;
  static constexpr bool keys_across = false;  ///< keys are rows, `[keys x width]`
  /// With AMX, oneDNN 2.6 has another kernel, which sums up in another order, for up to 32 rows and 256 results.
  static constexpr Index min_rows = 32;
  static constexpr Index min_part = 64;
  static constexpr Index padding = 0;

  /// Whether the processor has instructions for products of this type, and oneDNN's kernels for them keep a row's bits.
  static bool supported();

  static void score(Index rows, Index keys, Index width, const S* queries, const S* key_rows, float* scores);
  static void mix(Index rows, Index keys, Index width, const S* weights, const S* values, float* sums);
};
extern template struct OneDnnProducts<float>;
extern template struct OneDnnProducts<Eigen::bfloat16>;
#endif

/// By the kernels of this processor's instruction set.
struct OwnProducts {
  using Element = float;
  static constexpr bool keys_across = true;  ///< keys are columns, `[width x max_block_keys]`
  static constexpr Index min_rows = block_step;
  static constexpr Index min_part = block_step;
  static constexpr Index padding = block_step;  ///< powers of two would share a few sets of the first-level cache

  static void score(Index rows, Index keys, Index width, const float* queries, const float* key_columns,
                    float* scores) {
    block_kernels().multiply(rows, width, keys, queries, key_columns, max_block_keys + padding, scores);
  }
  static void mix(Index rows, Index keys, Index width, const float* weights, const float* values, float* sums) {
    block_kernels().multiply(rows, keys, width, weights, values, width + padding, sums);
  }
};

}  // namespace llama
