#pragma once

#include <cstdint>
#include <span>

#include "examples/llama/base.hpp"

/// \file
/// What attention does between and beside its two matrix products, on blocks that lie in the cache, and the products of
/// a few queries with keys and values where they lie. Compiled once for each instruction set; which one runs is chosen
/// when the program runs.
namespace llama {

/// Rows and columns of blocks come in multiples of this; what is spare is 0.
constexpr Index block_step = 16;

/// The online softmax of a block of scores `[rows x keys]`. Each other pointer has one value for each row.
struct ScoreBlock {
  Index rows = 0;
  Index keys = 0;  ///< a multiple of `block_step`
  float* scores = nullptr;
  const Index* visible = nullptr;  ///< how many keys of the block the row sees: the first ones
  float scale = 1;                 ///< of scores, times log2(e); above 0
  float* maximum = nullptr;        ///< largest scaled score so far, -infinity before the first
  float* total = nullptr;          ///< sum of the weights so far, relative to the maximum
  float* correction = nullptr;     ///< receives the factor of older sums, where the row sees a key
};

/// While `RowKernels` work at row i they fetch row i + `rows_ahead`, so there must be that many more pointers.
constexpr Index rows_ahead = 64;

/// Products with rows that lie anywhere: a query's with keys, and weights' with values. T is float, or the bits of a
/// bfloat16. With AVX512-BF16 queries and weights are rounded to bfloat16 beside such rows, where their width is a
/// multiple of 32 up to 256.
template <class T>
struct RowKernels {
  /// scores[query * stride + i] = the product of that query, of `[queries x width]`, and rows[i], for i below `count`.
  /// Width and count are multiples of `block_step`.
  void (*score)(Index queries, Index width, Index count, const float* query, const T* const* rows, float* scores,
                Index stride);
  /// sums[query * width + k] = the sum over i below `count` of weights[query * stride + i] * rows[i][k].
  void (*sum)(Index queries, Index width, Index count, const float* weights, Index stride, const T* const* rows,
              float* sums);
};

/// The kernels of one instruction set. A row's results depend on that row alone, bit for bit.
struct BlockKernels {
  /// Turns scores into weights, exactly 0 where a key is not visible, and updates maximum, total and correction.
  void (*weigh)(const ScoreBlock& block);
  /// The same, and rounds the weights to bfloat16 into `weights` `[rows x keys]`. Totals are of unrounded weights.
  void (*weigh_rounded)(const ScoreBlock& block, std::uint16_t* weights);
  /// sums = sums * correction + added, both `[rows x width]`, where the row sees a key.
  void (*accumulate)(const ScoreBlock& block, Index width, const float* added, float* sums);
  /// c = a b: `[rows x depth]` times `[depth x columns]`, whose rows lie `b_stride` apart. Columns are a multiple of
  /// `block_step`.
  void (*multiply)(Index rows, Index depth, Index columns, const float* a, const float* b, Index b_stride, float* c);
  /// `[rows x width]` to `[width x rows]`, whose rows lie `to_stride` apart; both are multiples of `block_step`.
  void (*transpose)(Index rows, Index width, const float* from, float* to, Index to_stride);
  RowKernels<float> floats;
  RowKernels<std::uint16_t> bfloat16;
  const char* isa;
};

/// Those for T, float or the bits of a bfloat16.
template <class T>
const RowKernels<T>& row_kernels(const BlockKernels& kernels) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return kernels.floats;
  } else {
    return kernels.bfloat16;
  }
}

/// One for each instruction set that is `usable`, the best first; the last one is for every processor.
std::span<const BlockKernels* const> usable_block_kernels();

/// The best.
inline const BlockKernels& block_kernels() { return *usable_block_kernels().front(); }

}  // namespace llama
