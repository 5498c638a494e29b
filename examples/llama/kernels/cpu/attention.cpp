#include "examples/llama/kernels/cpu/attention.hpp"

#include "examples/llama/kernels/cpu/attention_blocks.hpp"
#include "examples/llama/kernels/cpu/few_rows_attention.hpp"
#include "examples/llama/library.hpp"

// Many queries go in blocks (attention_blocks.cpp), a few rows chunk by chunk (few_rows_attention.cpp).

namespace llama {

template <class T>
void attention(lazyllm::cpu::Context& context, const AttentionShape& shape, const KeyValues<T>& cache, Positions keys,
               Positions key_limits, RowsView<const T> queries, RowsView<T> out, BlockProducts products) {
  const AttentionTask<T> task{shape, queries, cache, keys, key_limits, out};
  check_shape("attention", shape);
  check_rows("attention", task);
  const Index rows = queries.rows;
  if (rows == 0) return;
  if (suits_few_rows<T>(shape, rows)) return few_rows_attention(context, task);
  attend_in_blocks(context, task, products);
}

template <class T>
void attention(lazyllm::cpu::Context& context, const HostPlan<T>& plan, Index layer, RowsView<const T> queries,
               RowsView<T> out) {
  const AttentionShape& shape = plan.shape();
  const Index width = shape.heads * shape.head_dim;
  if (queries.rows != plan.query_rows() || queries.width != width || out.rows != queries.rows || out.width != width)
    fail("attention: queries [", queries.rows, " x ", queries.width, "] and out [", out.rows, " x ", out.width,
         "], allowed are [", plan.query_rows(), " x ", width, "]");
  for (Index s = 0; s < plan.sequences(); ++s) {
    const auto own = plan.queries(s);
    const Index rows = std::ssize(own.positions);
    if (rows == 0) continue;
    const KvView<T>& view = plan.cache(s);
    const Index at = layer * view.layer_stride;
    const KeyValues<T> cache{view.keys + at, view.values + at, view.position_stride, view.head_stride};
    const Positions keys = plan.sequence(s).keys;
    const auto own_queries = queries.subrows(own.first_row, rows);
    const auto own_out = out.subrows(own.first_row, rows);
    attention<T>(context, shape, cache, keys, own.key_limits, own_queries, own_out);
  }
}

#define LLAMA_INSTANTIATE(T)                                                                                        \
  template void attention(lazyllm::cpu::Context&, const AttentionShape&, const KeyValues<T>&, Positions, Positions, \
                          RowsView<const T>, RowsView<T>, BlockProducts);                                           \
  template void attention(lazyllm::cpu::Context&, const HostPlan<T>&, Index, RowsView<const T>, RowsView<T>);
LLAMA_INSTANTIATE(float)
LLAMA_INSTANTIATE(Eigen::bfloat16)
#undef LLAMA_INSTANTIATE

}  // namespace llama
