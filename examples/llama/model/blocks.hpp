#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "examples/llama/library.hpp"
#include "examples/llama/model/kv_caches.hpp"
#include "examples/llama/model/model.hpp"

namespace llama {

/// What the blocks of all layers use: the weights, the caches of the sequences, the rotary angles, and buffers.
template <class T, class Device = CpuDevice>
struct BlockResources {
  using Context = typename Device::Context;
  using Buffer = typename Context::template Buffer<T>;

  BlockResources(Context& context, const Model<T, Device>& model_, const KvCacheSize& size)
      : model(&model_),
        caches(context, model_.config(), size),
        rotary(context, rotary_table(model_.config()), caches.capacity()),
        plan(attention_shape(model_.config())) {}

  const Model<T, Device>* model;
  KvCaches<T, Device> caches;
  typename Device::Rotary rotary;
  typename Device::template Plan<T> plan;
  double operations = 0;  ///< floating-point operations done so far, of linear layers and attention
  Buffer normed, projected, queries, mixed, gate_up, gated, last_normed, last_hidden;
  std::vector<Index> last_indices, indices;

  /// The first `rows` rows of `buffer`, which is grown to hold them.
  static RowsView<T> take(Context& context, Buffer& buffer, Index rows, Index width) {
    buffer.reserve(context, rows, width);
    return buffer.rows().subrows(0, rows);
  }

  /// y = x W^T, counted.
  void apply(Context& context, const typename Model<T, Device>::Linear& linear, RowsView<T> x, RowsView<T> y) {
    linear.apply(context, RowsView<const T>(x), y);
    count(x.rows, linear);
  }

  /// y += x W^T, of all ranks, and y. `outputs()` gives y, which has `y_rows` rows. `inputs(first, rows)` gives these
  /// rows of x; it is asked for `most` rows at a time. Where one of them throws on one rank, all throw
  /// `lazyllm::rank_error`.
  template <class Outputs, class Inputs>
  RowsView<T> accumulate_ranks(Context& context, const typename Model<T, Device>::Linear& linear, Index y_rows,
                               const Outputs& outputs, Index most, const Inputs& inputs) {
    const auto for_parts = [&](const auto& add) {
      Index first = 0;
      do {  // once where there are no rows: the inputs of attention write K/V
        const Index rows = std::min(most, y_rows - first);
        add(first, RowsView<const T>(inputs(first, rows)));
        first += rows;
      } while (first < y_rows);
    };
    RowsView<T> y;
    if constexpr (Device::has_ranks) {
      if (RankGroup* const group = model->group()) {
        const auto write = [&](std::span<float> values) {
          y = outputs();
          for_parts([&](Index first, RowsView<const T> x) {
            linear.apply(context, x, RowsView<float>(values.data() + first * y.width, x.rows, y.width));
            count(x.rows, linear);
          });
        };
        const std::span<const float> sums = group->sum(y_rows * linear.out(), write);
        Device::add(context, RowsView<const float>(sums.data(), y.rows, y.width), y);
        return y;
      }
    }
    y = outputs();
    for_parts([&](Index first, RowsView<const T> x) {
      linear.accumulate(context, x, y.subrows(first, x.rows));
      count(x.rows, linear);
    });
    return y;
  }

  /// Floating-point operations of the attention of `plan`.
  double attention_operations(const lazyllm::LayerPlan& plan) const {
    double visible = 0;
    for (Index s = 0; s < plan.sequences(); ++s) {
      const lazyllm::SequencePlan part = plan.sequence(s);
      const Index rows = plan.outputs_only() ? part.outputs : std::ssize(part.positions);
      for (const Position limit : part.key_limits.last(static_cast<std::size_t>(rows))) visible += limit;
    }
    const ModelConfig& config = model->config();
    return 4 * visible * static_cast<double>(config.heads * config.head_dim);
  }

  /// Appends to `key` the addresses and sizes of what the blocks work with. For devices with graphs.
  void identify(Context& context, std::vector<std::uint64_t>& key) const {
    plan.identify(key);
    for (const Buffer* buffer : {&normed, &projected, &queries, &mixed, &gate_up, &gated, &last_normed, &last_hidden}) {
      key.push_back(reinterpret_cast<std::uintptr_t>(buffer->rows().data));
    }
    key.push_back(reinterpret_cast<std::uintptr_t>(context.workspace(0)));
  }

  /// Output rows of all sequences.
  static Index output_count(const lazyllm::LayerPlan& plan) {
    return std::accumulate(plan.outputs().begin(), plan.outputs().end(), Index{0});
  }

  /// Whether all rows of `plan` are output rows.
  static bool all_are_outputs(const lazyllm::LayerPlan& plan) { return plan.rows() == output_count(plan); }

  /// The output rows of each sequence, without gaps: a view where they lie like this, else copied to `buffer`.
  RowsView<T> output_rows(Context& context, const lazyllm::LayerPlan& plan, RowsView<T> rows, Buffer& buffer) {
    const Index outputs = output_count(plan);
    if (lie_together(plan)) return rows.subrows(rows.rows - outputs, outputs);
    list_output_rows(plan);
    const RowsView<T> last = take(context, buffer, outputs, rows.width);
    copy_rows(context, RowsView<const T>(rows), std::span<const Index>(last_indices), last,
              std::span<const Index>(indices));
    return last;
  }

  /// Copies what `output_rows` has copied back.
  void put_back(Context& context, const lazyllm::LayerPlan& plan, RowsView<T> last, RowsView<T> rows) {
    if (lie_together(plan)) return;
    list_output_rows(plan);
    copy_rows(context, RowsView<const T>(last), std::span<const Index>(indices), rows,
              std::span<const Index>(last_indices));
  }

 private:
  void count(Index rows, const typename Model<T, Device>::Linear& linear) {
    operations += 2.0 * static_cast<double>(rows) * static_cast<double>(linear.in() * linear.out());
  }

  static bool lie_together(const lazyllm::LayerPlan& plan) { return plan.sequences() == 1 || all_are_outputs(plan); }

  void list_output_rows(const lazyllm::LayerPlan& plan) {
    last_indices.clear();
    for (Index s = 0; s < plan.sequences(); ++s) {
      const auto sequence = static_cast<std::size_t>(s);
      const Index end = plan.row_indptr()[sequence + 1];
      for (Index row = end - plan.outputs()[sequence]; row < end; ++row) last_indices.push_back(row);
    }
    indices.resize(last_indices.size());
    std::iota(indices.begin(), indices.end(), 0);
  }
};

/// Attention of one layer, as `lazyllm::Attention` asks for it.
template <class T, class Device = CpuDevice>
class AttentionBlock {
 public:
  using Context = typename Device::Context;

  AttentionBlock(BlockResources<T, Device>* resources, Index layer) : resources_(resources), layer_(layer) {}

  Index layer() const { return layer_; }

  void attend(Context& context, const lazyllm::LayerPlan& plan, RowsView<T> hidden) {
    const bool last = plan.outputs_only();
    const Index rows = last ? resources_->output_count(plan) : hidden.rows;
    const RowsView<T> outputs = resources_->accumulate_ranks(
        context, resources_->model->layer(layer_).output, rows,
        [&] { return last ? resources_->output_rows(context, plan, hidden, resources_->last_hidden) : hidden; }, rows,
        [&](Index, Index) { return mix(context, plan, hidden); });
    if (last) resources_->put_back(context, plan, outputs, hidden);
  }

  lazyllm::QueryRows<T> queries(const lazyllm::LayerPlan&) const {
    const ModelConfig& config = resources_->model->config();
    return {queries_.data, queries_.stride, config.head_dim,
            config.heads,  config.head_dim, attention_shape(config).scale};
  }

  /// The queries of the last `attend`, which `queries` shows.
  RowsView<T> query_rows() const { return queries_; }
  /// Says what an `attend` whose work was replayed has left.
  void set_query_rows(RowsView<T> rows) { queries_ = rows; }

  auto key_view(const lazyllm::LayerPlan&, Index s) const { return resources_->caches.key_view(s, layer_); }

 private:
  /// Attention without its output projection: of the output rows in the last layer, else of all rows.
  RowsView<T> mix(Context& context, const lazyllm::LayerPlan& plan, RowsView<T> hidden) {
    const ModelConfig& config = resources_->model->config();
    const auto& weights = resources_->model->layer(layer_);
    const Index query_width = config.heads * config.head_dim;

    const RowsView<T> normed = resources_->take(context, resources_->normed, plan.rows(), config.hidden_size);
    Device::rms_norm(context, RowsView<const T>(hidden), weights.attention_norm,
                     static_cast<float>(config.norm_epsilon), normed);
    const Index kv_width = 2 * config.kv_heads * config.head_dim;
    const RowsView<T> room = resources_->take(context, resources_->projected, plan.rows(), kv_width + query_width);
    const RowsView<T> projected(room.data, room.rows, weights.projection.out());
    resources_->apply(context, weights.projection, normed, projected);
    normalize_heads(context, weights.key_norm,
                    RowsView<T>(projected.data, projected.rows, kv_width / 2, projected.stride));
    resources_->plan.update(context, plan, resources_->caches.views());
    const RotaryView rotary = resources_->rotary.view();
    Device::write_key_values(context, resources_->plan, layer_, rotary,
                             RowsView<const T>(projected.data, projected.rows, kv_width, projected.stride));

    if (weights.query) {
      const RowsView<T> inputs =
          plan.outputs_only() ? resources_->output_rows(context, plan, normed, resources_->last_normed) : normed;
      queries_ = resources_->take(context, resources_->queries, inputs.rows, query_width);
      resources_->apply(context, *weights.query, inputs, queries_);
    } else {
      queries_ = RowsView<T>(projected.data + kv_width, projected.rows, query_width, projected.stride);
    }
    const RowsView<T> mixed = resources_->take(context, resources_->mixed, queries_.rows, query_width);
    normalize_heads(context, weights.query_norm, queries_);
    Device::rotate(context, resources_->plan, rotary, queries_);
    Device::attention(context, resources_->plan, layer_, RowsView<const T>(queries_), mixed);
    resources_->operations += resources_->attention_operations(plan);
    return mixed;
  }

  void normalize_heads(Context& context, const std::optional<typename Device::Vector>& weight, RowsView<T> heads) {
    if (!weight) return;
    Device::rms_norm_heads(context, *weight, static_cast<float>(resources_->model->config().norm_epsilon), heads);
  }

  BlockResources<T, Device>* resources_;
  Index layer_;
  RowsView<T> queries_;
};

/// Norm, gated MLP and residual of one layer, as `lazyllm::FeedForward` asks for it.
template <class T, class Device = CpuDevice>
class FeedForwardBlock {
 public:
  using Context = typename Device::Context;

  FeedForwardBlock(BlockResources<T, Device>* resources, Index layer) : resources_(resources), layer_(layer) {}

  void feed_forward(Context& context, RowsView<T> hidden) {
    const ModelConfig& config = resources_->model->config();
    const auto& weights = resources_->model->layer(layer_);
    resources_->accumulate_ranks(
        context, weights.down, hidden.rows, [&] { return hidden; }, Device::feed_forward_rows,
        [&](Index first, Index rows) {
          const RowsView<T> part = hidden.subrows(first, rows);
          const RowsView<T> normed = resources_->take(context, resources_->normed, rows, config.hidden_size);
          const RowsView<T> gate_up =
              resources_->take(context, resources_->gate_up, rows, 2 * config.intermediate_size);
          const RowsView<T> gated = resources_->take(context, resources_->gated, rows, config.intermediate_size);
          Device::rms_norm(context, RowsView<const T>(part), weights.feed_forward_norm,
                           static_cast<float>(config.norm_epsilon), normed);
          resources_->apply(context, weights.gate_up, normed, gate_up);
          Device::swiglu(context, RowsView<const T>(gate_up), gated);
          return gated;
        });
  }

 private:
  BlockResources<T, Device>* resources_;
  Index layer_;
};

}  // namespace llama
