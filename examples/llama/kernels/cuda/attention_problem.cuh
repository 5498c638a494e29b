#pragma once

#include <cstdint>

#include "examples/llama/kernels/cuda/cache_rows.cuh"
#include "examples/llama/kernels/cuda/device_plan.hpp"
#include "examples/llama/library.hpp"

namespace llama::kernels {

/// Maximum of the scores and sum of the weights, which are relative to it, of a part of a query's keys.
struct PartSums {
  float highest;
  float sum;
};

/// Attention of the tiles of one size. Block b does tile b / kv_heads for key/value head b % kv_heads: the longest
/// tiles of all heads start first, so that the device is busy until the end.
template <class T>
struct AttentionProblem {
  using Plan = DevicePlan<T>;

  const typename Plan::Tile* tiles;
  const typename Plan::Join* joins;
  int tile_count;
  int join_count;
  int tile_queries;
  const typename Plan::Extent* extents;
  const KvView<T>* caches;
  const Position* keys;
  const Position* limits;
  Index layer;
  int group;
  int kv_heads;
  int head_dim;
  float scale;  // of the scores, times log2(e): the weights are powers of 2
  RowsView<const T> queries;
  RowsView<T> out;
  float* part_values;   // `[parts x kv_heads x tile_queries x head_dim]`, sums not divided yet
  PartSums* part_sums;  // `[parts x kv_heads x tile_queries]`

  __device__ Index query_row(const typename Plan::Extent& extent, int query) const {
    return extent.first_row + query / group;
  }
  __device__ const T* query_at(const typename Plan::Extent& extent, int kv_head, int query) const {
    return queries.row(query_row(extent, query)) + (kv_head * group + query % group) * head_dim;
  }
  __device__ T* out_at(const typename Plan::Extent& extent, int kv_head, int query) const {
    return out.row(query_row(extent, query)) + (kv_head * group + query % group) * head_dim;
  }
  __device__ Index part_at(int part, int kv_head, int tile_query) const {
    return (static_cast<Index>(part) * kv_heads + kv_head) * tile_queries + tile_query;
  }

  /// Where the K and V of the sequence's key number `key` lie, from the first of their layer and head.
  __device__ Index key_offset(const typename Plan::Extent& extent, const KvView<T>& cache, int key) const {
    return offset_of(cache, extent.first_key < 0 ? key : keys[extent.first_key + key]);
  }
};

}  // namespace llama::kernels
