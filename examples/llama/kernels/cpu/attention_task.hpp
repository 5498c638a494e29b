#pragma once

#include "examples/llama/kernels/cpu/attention.hpp"
#include "examples/llama/kernels/cpu/rounding.hpp"

namespace llama {

constexpr Index round_up(Index count, Index step) { return (count + step - 1) / step * step; }

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

/// Throws `std::invalid_argument`, in the name of the kernel `name`, unless there is such a shape.
inline void check_shape(const char* name, const AttentionShape& shape) {
  if (shape.heads < 1 || shape.kv_heads < 1 || shape.heads % shape.kv_heads != 0)
    fail(name, ": ", shape.kv_heads, " key/value heads for ", shape.heads, " heads, must divide them");
  if (shape.head_dim < 2 || shape.head_dim % 2 != 0)
    fail(name, ": head_dim ", shape.head_dim, " is out of range, even and at least 2");
}

/// Throws `std::invalid_argument`, in the name of the kernel `name`, unless the rows fit the shape and each other, and
/// the limits are in range.
template <class T>
void check_rows(const char* name, const AttentionTask<T>& task) {
  const Index width = task.shape.heads * task.shape.head_dim;
  if (task.queries.width != width || task.out.width != width || task.out.rows != task.queries.rows)
    fail(name, ": queries [", task.queries.rows, " x ", task.queries.width, "] and out [", task.out.rows, " x ",
         task.out.width, "], both must be [rows x ", width, "]");
  if (std::ssize(task.key_limits) != task.queries.rows)
    fail(name, ": ", task.key_limits.size(), " key limits for ", task.queries.rows, " rows");
  Position least = 1;
  for (const Position limit : task.key_limits) {
    if (limit < least || limit > std::ssize(task.keys))
      fail(name, ": key limit ", limit, " is out of range ", least, " to ", task.keys.size(), ", ascending");
    least = limit;
  }
}

}  // namespace llama
