#include "examples/ggml_engine/forward.hpp"

#include <fmt/format.h>
#include <ggml-cpu.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace ggml_engine {

namespace {

/// llama.cpp rounds the cells that attention looks at up to this number; so the sums of one row have the same parts.
constexpr Index cell_step = 256;
/// From so many rows on ggml's flash attention computes tiles, which masked cells are part of, and sums do not depend
/// on their number. Fewer rows skip masked cells one by one.
constexpr Index tile_rows = 64;
/// Rows whose probabilities one graph computes: all of a wide window at once would need more memory than the layers.
constexpr Index score_rows = 32;
constexpr std::uint16_t visible = 0, hidden_from = 0xFC00;  // 0 and minus infinity as halves

std::size_t nodes_of(Index layers) { return static_cast<std::size_t>(64 * layers + 64); }

/// Fills an input. One that no node reads has no memory.
void set(ggml_tensor* tensor, const void* data) {
  if (tensor->buffer != nullptr) ggml_backend_tensor_set(tensor, data, 0, ggml_nbytes(tensor));
}

}  // namespace

/// A graph that is built, computed once and forgotten. Its tensors lie in the memory that `Forward` has reserved.
class Forward::Graph {
 public:
  explicit Graph(Forward& forward)
      : forward_(forward),
        context_(ggml_init(
            {.mem_size = forward.graph_memory_.size(), .mem_buffer = forward.graph_memory_.data(), .no_alloc = true})),
        graph_(ggml_new_graph_custom(context_.get(), nodes_of(forward.shape().layers), /*grads=*/false)) {}

  ggml_tensor* input(ggml_type type, Index columns, Index rows = 1) {
    ggml_tensor* const tensor = ggml_new_tensor_2d(context(), type, columns, rows);
    ggml_set_input(tensor);
    return tensor;
  }
  ggml_tensor* output(ggml_tensor* tensor) {
    ggml_set_output(tensor);
    return add(tensor);
  }
  ggml_tensor* add(ggml_tensor* tensor) {
    ggml_build_forward_expand(graph_, tensor);
    return tensor;
  }

  void allocate() {
    if (!ggml_gallocr_alloc_graph(forward_.allocator_.get(), graph_)) {
      throw std::runtime_error("not enough memory for a graph");
    }
  }
  void reserve() {
    if (!ggml_gallocr_reserve(forward_.allocator_.get(), graph_)) {
      throw std::runtime_error("not enough memory for the graphs");
    }
  }
  void compute() {
    if (ggml_backend_graph_compute(forward_.backend_.get(), graph_) != GGML_STATUS_SUCCESS) {
      throw std::runtime_error("ggml could not compute a graph");
    }
  }

  ggml_context* context() { return context_.get(); }

  ggml_tensor* norm(ggml_tensor* rows, ggml_tensor* weight) {
    return ggml_mul(context(), ggml_rms_norm(context(), rows, forward_.shape().norm_epsilon), weight);
  }
  ggml_tensor* last_rows(ggml_tensor* matrix, Index count) {
    const auto skipped = static_cast<std::size_t>(matrix->ne[1] - count) * matrix->nb[1];
    return ggml_view_2d(context(), matrix, matrix->ne[0], count, matrix->nb[1], skipped);
  }

  /// Rows as `[head_dim, rows, heads]`.
  ggml_tensor* by_head(ggml_tensor* rows, Index heads) {
    const auto head_dim = forward_.shape().head_dim;
    const std::size_t head = ggml_row_size(rows->type, head_dim);
    return ggml_permute(context(), ggml_view_3d(context(), rows, head_dim, heads, rows->ne[1], head, rows->nb[1], 0), 0,
                        2, 1, 3);
  }

  /// What the attention of all layers of a graph reads. `keys` is null where cells are read in place.
  struct Inputs {
    ggml_tensor *positions, *cells, *keys, *mask;
    Index outputs;  // of the last layer
    Index queries;  // to keep of each layer
    Index slot;     // of the first of these
  };

  Inputs inputs(Index rows, bool gathered, Index columns) {
    return {.positions = input(GGML_TYPE_I32, rows),
            .cells = input(GGML_TYPE_I64, rows),
            .keys = gathered ? input(GGML_TYPE_I32, columns) : nullptr,
            .mask = input(GGML_TYPE_F16, columns, rows),
            .outputs = rows,
            .queries = 0,
            .slot = 0};
  }

  /// The rows after the attention of layer `l`; null where no row has a result.
  ggml_tensor* attention(Index l, ggml_tensor* hidden, const Inputs& in) {
    const Shape& shape = forward_.shape();
    const Layer& weights = forward_.model_.layer(l);
    const Cells& cells = forward_.cells_[static_cast<std::size_t>(l)];
    ggml_tensor* const x = norm(hidden, weights.attention_norm);
    const auto project = [&](ggml_tensor* matrix, ggml_tensor* bias) {
      ggml_tensor* const product = ggml_mul_mat(context(), matrix, x);
      return bias != nullptr ? ggml_add(context(), product, bias) : product;
    };
    const auto turned = [&](ggml_tensor* rows, ggml_tensor* head_norm, Index heads) {
      rows = ggml_reshape_3d(context(), rows, shape.head_dim, heads, rows->ne[1]);
      if (head_norm != nullptr) rows = norm(rows, head_norm);
      rows = ggml_rope_ext(context(), rows, in.positions, weights.rope_factors, static_cast<int>(shape.head_dim),
                           shape.rope_mode, static_cast<int>(shape.context), shape.rope_base, shape.rope_scale,
                           /*ext_factor=*/0, /*attn_factor=*/1, /*beta_fast=*/32, /*beta_slow=*/1);
      return ggml_reshape_2d(context(), rows, shape.head_dim * heads, rows->ne[2]);
    };
    ggml_tensor* const query = add(turned(project(weights.query, weights.query_bias), weights.query_norm, shape.heads));
    ggml_tensor* const key = turned(project(weights.key, weights.key_bias), weights.key_norm, shape.kv_heads);
    ggml_tensor* const value = project(weights.value, weights.value_bias);
    ggml_tensor* keys = add(ggml_set_rows(context(), cells.keys, key, in.cells));
    ggml_tensor* values = add(ggml_set_rows(context(), cells.values, value, in.cells));
    // [scores]
    if (in.queries > 0) {
      ggml_tensor* const kept = ggml_view_2d(context(), cells.queries, query->ne[0], in.queries, cells.queries->nb[1],
                                             static_cast<std::size_t>(in.slot) * cells.queries->nb[1]);
      add(ggml_cpy(context(), last_rows(query, in.queries), kept));
    }
    // [scores-end]
    if (l + 1 == shape.layers && in.outputs == 0) return nullptr;

    if (in.keys != nullptr) {
      keys = ggml_get_rows(context(), keys, in.keys);
      values = ggml_get_rows(context(), values, in.keys);
    } else {
      keys = ggml_view_2d(context(), keys, keys->ne[0], in.mask->ne[0], keys->nb[1], 0);
      values = ggml_view_2d(context(), values, values->ne[0], in.mask->ne[0], values->nb[1], 0);
    }
    ggml_tensor* rows = ggml_flash_attn_ext(
        context(), by_head(query, shape.heads), by_head(keys, shape.kv_heads), by_head(values, shape.kv_heads), in.mask,
        1 / std::sqrt(static_cast<float>(shape.head_dim)), /*max_bias=*/0, /*logit_softcap=*/0);
    rows = ggml_mul_mat(context(), weights.output, ggml_reshape_2d(context(), rows, query->ne[0], query->ne[1]));
    if (l + 1 == shape.layers) {
      rows = last_rows(rows, in.outputs);
      hidden = last_rows(hidden, in.outputs);
    }
    return ggml_add(context(), rows, hidden);
  }

  ggml_tensor* feed_forward(Index l, ggml_tensor* hidden) {
    const Layer& weights = forward_.model_.layer(l);
    ggml_tensor* const x = norm(hidden, weights.feed_forward_norm);
    ggml_tensor* const up = ggml_mul_mat(context(), weights.up, x);
    ggml_tensor* const gate = ggml_mul_mat(context(), weights.gate, x);
    ggml_tensor* const product = ggml_mul_mat(context(), weights.down, ggml_swiglu_split(context(), gate, up));
    return ggml_add(context(), product, hidden);
  }

  /// The rows after `blocks`; null where no row has a result.
  ggml_tensor* run(Blocks blocks, ggml_tensor* hidden, const Inputs& in) {
    for (Index block = blocks.first; block < blocks.end && hidden != nullptr; ++block) {
      hidden = block % 2 == 0 ? attention(block / 2, hidden, in) : feed_forward(block / 2, hidden);
    }
    return hidden;
  }

  // [scores]
  ggml_tensor* probabilities(Index l, Index first, Heads heads, ggml_tensor* key_list, ggml_tensor* mask) {
    const Shape& shape = forward_.shape();
    const Cells& cells = forward_.cells_[static_cast<std::size_t>(l)];
    ggml_tensor* const query =
        ggml_view_2d(context(), cells.queries, cells.queries->ne[0], mask->ne[1], cells.queries->nb[1],
                     static_cast<std::size_t>(first) * cells.queries->nb[1]);
    ggml_tensor* const keys = ggml_get_rows(context(), cells.keys, key_list);
    ggml_tensor* p = ggml_mul_mat(context(), by_head(keys, shape.kv_heads), by_head(query, shape.heads));
    p = ggml_soft_max_ext(context(), p, mask, 1 / std::sqrt(static_cast<float>(shape.head_dim)), /*max_bias=*/0);
    p = ggml_cont(context(), ggml_permute(context(), p, 1, 2, 0, 3));
    const auto all = static_cast<int>(shape.heads);
    return heads == Heads::mean ? ggml_mean(context(), p) : ggml_pool_1d(context(), p, GGML_OP_POOL_MAX, all, all, 0);
  }
  // [scores-end]

 private:
  Forward& forward_;
  ggml_context_ptr context_;
  ggml_cgraph* graph_;
};

Forward::Forward(const Model& model, const Room& room)
    : model_(model), room_(room), backend_(ggml_backend_cpu_init()), graph_memory_([&] {
        const std::size_t nodes = nodes_of(model.shape().layers);
        return 2 * nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(nodes, /*grads=*/false);
      }()) {
  if (room.context < 1 || room.context > shape().context) {
    throw std::runtime_error(
        fmt::format("{} tokens are out of range 1 to {}, the model's context", room.context, shape().context));
  }
  if (room.threads < 1 || room.threads > GGML_MAX_N_THREADS) {
    throw std::runtime_error(fmt::format("{} threads are out of range 1 to {}", room.threads, GGML_MAX_N_THREADS));
  }
  ggml_backend_cpu_set_n_threads(backend_.get(), room.threads);
  const Index cells = GGML_PAD(room.context, cell_step);
  tensors_.reset(ggml_init({.mem_size = static_cast<std::size_t>(3 * shape().layers) * ggml_tensor_overhead(),
                            .mem_buffer = nullptr,
                            .no_alloc = true}));
  for (Index l = 0; l < shape().layers; ++l) {
    cells_.push_back(
        {.keys = ggml_new_tensor_2d(tensors_.get(), room.cache_type, shape().kv_width(), cells),
         .values = ggml_new_tensor_2d(tensors_.get(), room.cache_type, shape().kv_width(), cells),
         .queries = ggml_new_tensor_2d(tensors_.get(), GGML_TYPE_F32, shape().heads * shape().head_dim, room.queries)});
  }
  cache_.reset(ggml_backend_alloc_ctx_tensors(tensors_.get(), backend_.get()));
  if (!cache_) throw std::runtime_error(fmt::format("not enough memory for the K/V of {} tokens", room.context));
  ggml_backend_buffer_clear(cache_.get(), 0);  // attention multiplies K/V of masked cells by 0: they must be finite
  allocator_.reset(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend_.get())));
  reserve();
}

void Forward::reserve() {
  const Index rows = std::min(room_.rows, room_.context);
  {
    Graph graph(*this);
    const auto in = graph.inputs(rows, /*gathered=*/true, room_.context);
    graph.output(graph.run({0, 2 * shape().layers}, graph.input(GGML_TYPE_F32, shape().hidden_size, rows), in));
    graph.reserve();
  }
  Graph graph(*this);
  graph.output(graph.probabilities(0, 0, Heads::mean, graph.input(GGML_TYPE_I32, room_.context),
                                   graph.input(GGML_TYPE_F16, room_.context, std::min(room_.queries, score_rows))));
  graph.reserve();
}

void Forward::embed(std::span<const std::int32_t> tokens, float* rows) {
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= shape().vocabulary) {
      throw std::runtime_error(fmt::format("token {} is out of range 0 to {}", token, shape().vocabulary - 1));
    }
  }
  for (; !tokens.empty(); tokens = tokens.subspan(std::min(tokens.size(), static_cast<std::size_t>(room_.rows)))) {
    const Index count = std::min(std::ssize(tokens), room_.rows);
    Graph graph(*this);
    ggml_tensor* const ids = graph.input(GGML_TYPE_I32, count);
    ggml_tensor* const result = graph.output(ggml_get_rows(graph.context(), model_.embedding(), ids));
    graph.allocate();
    set(ids, tokens.data());
    graph.compute();
    ggml_backend_tensor_get(result, rows, 0, ggml_nbytes(result));
    rows += count * shape().hidden_size;
  }
}

void Forward::run(Blocks blocks, const Attended& attended, float* hidden) {
  const Index rows = std::ssize(attended.positions);
  for (Index first = 0; first < rows; first += room_.rows) {
    run_rows(blocks, attended, first, std::min(room_.rows, rows - first), hidden);
  }
}

namespace {

/// Row i of the mask sees the first `limits[i]` columns.
void fill_mask(std::vector<std::uint16_t>& mask, Index columns, std::span<const std::int32_t> limits) {
  mask.assign(limits.size() * static_cast<std::size_t>(columns), hidden_from);
  auto row = mask.begin();
  for (const std::int32_t limit : limits) {
    std::fill_n(row, limit, visible);
    row += columns;
  }
}

}  // namespace

void Forward::run_rows(Blocks blocks, const Attended& attended, Index first, Index count, float* hidden) {
  const Index rows = std::ssize(attended.positions), kept = std::min(room_.queries, rows);
  const auto part = [&](auto list) {
    return list.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  };
  const auto limits = part(attended.key_limits);
  const auto keys = attended.keys.first(static_cast<std::size_t>(limits.back()));
  const bool gathered = keys.back() + 1 != std::ssize(keys);
  Index columns = std::ssize(keys);
  if (!gathered && count < tile_rows) columns = GGML_PAD(columns, cell_step);
  const auto in_part = [&](Index last) { return std::clamp<Index>(first + count - (rows - last), 0, count); };

  Graph graph(*this);
  auto in = graph.inputs(count, gathered, columns);
  in.outputs = in_part(attended.outputs);
  in.queries = in_part(kept);
  in.slot = first + count - in.queries - (rows - kept);
  ggml_tensor* const source = graph.input(GGML_TYPE_F32, shape().hidden_size, count);
  ggml_tensor* const result = graph.run(blocks, source, in);
  if (result != nullptr) graph.output(result);
  graph.allocate();
  float* const begin = hidden + first * shape().hidden_size;
  set(source, begin);
  set(in.positions, part(attended.positions).data());
  cell_numbers_.assign(part(attended.positions).begin(), part(attended.positions).end());
  set(in.cells, cell_numbers_.data());
  if (gathered) set(in.keys, keys.data());
  fill_mask(mask_, columns, limits);
  set(in.mask, mask_.data());
  graph.compute();
  if (result != nullptr) {
    ggml_backend_tensor_get(result, begin + (count - result->ne[1]) * shape().hidden_size, 0, ggml_nbytes(result));
  }
}

void Forward::feed_forward(Index layer, float* hidden, Index rows) {
  for (Index first = 0; first < rows; first += room_.rows) {
    Graph graph(*this);
    ggml_tensor* const source = graph.input(GGML_TYPE_F32, shape().hidden_size, std::min(room_.rows, rows - first));
    ggml_tensor* const result = graph.output(graph.feed_forward(layer, source));
    graph.allocate();
    set(source, hidden + first * shape().hidden_size);
    graph.compute();
    ggml_backend_tensor_get(result, hidden + first * shape().hidden_size, 0, ggml_nbytes(result));
  }
}

std::vector<float> Forward::logits(const float* hidden, Index rows) {
  Graph graph(*this);
  ggml_tensor* const source = graph.input(GGML_TYPE_F32, shape().hidden_size, rows);
  ggml_tensor* const result =
      graph.output(ggml_mul_mat(graph.context(), model_.classifier(), graph.norm(source, model_.output_norm())));
  graph.allocate();
  set(source, hidden);
  graph.compute();
  std::vector<float> values(static_cast<std::size_t>(ggml_nelements(result)));
  ggml_backend_tensor_get(result, values.data(), 0, ggml_nbytes(result));
  return values;
}

// [scores]
std::vector<float> Forward::probabilities(Index layer, Index first_kept, Index count, Heads heads,
                                          const Attended& attended) {
  const Index rows = std::ssize(attended.positions), kept = std::min(room_.queries, rows);
  if (first_kept < 0 || count < 1 || first_kept + count > kept) {
    throw std::runtime_error(
        fmt::format("Q of rows {} to {} is not kept, only of {}", first_kept, first_kept + count - 1, kept));
  }
  const Index columns = std::ssize(attended.keys);
  std::vector<float> values(static_cast<std::size_t>(count * columns));
  for (Index done = 0; done < count; done += score_rows) {
    const Index first = first_kept + done, part = std::min(score_rows, count - done);
    Graph graph(*this);
    ggml_tensor* const key_list = graph.input(GGML_TYPE_I32, columns);
    ggml_tensor* const mask = graph.input(GGML_TYPE_F16, columns, part);
    ggml_tensor* const result = graph.output(graph.probabilities(layer, first, heads, key_list, mask));
    graph.allocate();
    set(key_list, attended.keys.data());
    fill_mask(
        mask_, columns,
        attended.key_limits.subspan(static_cast<std::size_t>(rows - kept + first), static_cast<std::size_t>(part)));
    set(mask, mask_.data());
    graph.compute();
    ggml_backend_tensor_get(result, values.data() + done * columns, 0, ggml_nbytes(result));
  }
  return values;
}
// [scores-end]

std::size_t Forward::cache_bytes() const { return ggml_backend_buffer_get_size(cache_.get()); }
std::size_t Forward::compute_bytes() const { return ggml_gallocr_get_buffer_size(allocator_.get(), 0); }

}  // namespace ggml_engine
