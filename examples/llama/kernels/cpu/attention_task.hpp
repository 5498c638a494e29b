#pragma once

#include "examples/llama/kernels/cpu/attention.hpp"

namespace llama {

/// Attention of one sequence in one layer: everything that the threads share. The query heads that share a key/value
/// head are queries of the same block: "query" number row * group + head.
template <class T>
struct AttentionTask {
  AttentionShape shape;
  RowsView<const T> queries;
  KeyValues<T> cache;
  Positions keys;
  Positions key_limits;
  RowsView<T> out;

  Index group() const { return shape.heads / shape.kv_heads; }
  Index head_offset(Index kv_head, Index query) const { return (kv_head * group() + query % group()) * shape.head_dim; }
  const T* query(Index kv_head, Index query) const {
    return queries.row(query / group()) + head_offset(kv_head, query);
  }
  T* result(Index kv_head, Index query) const { return out.row(query / group()) + head_offset(kv_head, query); }
  Index query_count() const { return queries.rows * group(); }  ///< of each key/value head
  Position limit(Index query) const { return key_limits[static_cast<std::size_t>(query / group())]; }
  Index offset(Index kv_head, Index key) const {
    return keys[static_cast<std::size_t>(key)] * cache.position_stride + kv_head * cache.head_stride;
  }
};

}  // namespace llama
