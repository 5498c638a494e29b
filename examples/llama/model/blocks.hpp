#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "examples/llama/library.hpp"
#include "examples/llama/model/kv_cache.hpp"
#include "examples/llama/model/model.hpp"

namespace llama {

/// What the blocks of all layers share: the weights, the attention with the caches of the sequences, and buffers.
template <class T, class Device = CpuDevice>
struct Shared {
  using Context = typename Device::Context;
  using Buffer = typename Context::template Buffer<T>;

  Shared(Context& context, const Model<T, Device>& model_, const KvRoom& room)
      : model(&model_), attention(context, model_.config(), room) {}

  const Model<T, Device>* model;
  typename Device::template Attention<T> attention;
  double operations = 0;  ///< floating-point operations done so far, of linear layers and attention
  Buffer normed, queries, key_values, mixed, gate_up, gated, last_normed, last_hidden;
  std::vector<Index> last_indices, indices;

  /// The first `rows` rows of `buffer`, which is grown to hold them.
  static RowsView<T> take(Context& context, Buffer& buffer, Index rows, Index width) {
    buffer.reserve(context, rows, width);
    return buffer.rows().subrows(0, rows);
  }

  /// y = x W^T, counted.
  void apply(Context& context, const typename Model<T, Device>::Linear& linear, RowsView<T> x, RowsView<T> y) {
    Device::apply(context, linear, RowsView<const T>(x), y);
    count(x.rows, linear);
  }

  /// y += x W^T, counted.
  void accumulate(Context& context, const typename Model<T, Device>::Linear& linear, RowsView<T> x, RowsView<T> y) {
    Device::accumulate(context, linear, RowsView<const T>(x), y);
    count(x.rows, linear);
  }

  /// The last of the `rows` of each sequence, without gaps: a view where they lie like this, else copied to `buffer`.
  RowsView<T> last_rows(Context& context, const lazyllm::LayerPlan& plan, RowsView<T> rows, Buffer& buffer) {
    const Index sequences = plan.sequences();
    if (lie_together(plan)) return rows.subrows(rows.rows - sequences, sequences);
    list_last_rows(plan);
    const RowsView<T> last = take(context, buffer, sequences, rows.width);
    copy_rows(context, RowsView<const T>(rows), std::span<const Index>(last_indices), last,
              std::span<const Index>(indices));
    return last;
  }

  /// Copies what `last_rows` has copied back.
  void put_back(Context& context, const lazyllm::LayerPlan& plan, RowsView<T> last, RowsView<T> rows) {
    if (lie_together(plan)) return;
    list_last_rows(plan);
    copy_rows(context, RowsView<const T>(last), std::span<const Index>(indices), rows,
              std::span<const Index>(last_indices));
  }

 private:
  void count(Index rows, const typename Model<T, Device>::Linear& linear) {
    operations += 2.0 * static_cast<double>(rows) * static_cast<double>(linear.in() * linear.out());
  }

  static bool lie_together(const lazyllm::LayerPlan& plan) {
    return plan.sequences() == 1 || plan.rows() == plan.sequences();
  }

  void list_last_rows(const lazyllm::LayerPlan& plan) {
    const auto ends = plan.row_indptr().subspan(1);
    last_indices.assign(ends.begin(), ends.end());
    for (Index& row : last_indices) --row;
    indices.resize(ends.size());
    std::iota(indices.begin(), indices.end(), 0);
  }
};

/// Attention of one layer, as `lazyllm::Attention` asks for it.
template <class T, class Device = CpuDevice>
class AttentionBlock {
 public:
  using Context = typename Device::Context;

  AttentionBlock(Shared<T, Device>* shared, Index layer) : shared_(shared), layer_(layer) {}

  void attend(Context& context, const lazyllm::LayerPlan& plan, RowsView<T> hidden) {
    const ModelConfig& config = shared_->model->config();
    const auto& weights = shared_->model->layer(layer_);
    const Index query_width = config.heads * config.head_dim;

    const RowsView<T> normed = shared_->take(context, shared_->normed, plan.rows(), config.hidden_size);
    Device::rms_norm(context, RowsView<const T>(hidden), weights.attention_norm,
                     static_cast<float>(config.norm_epsilon), normed);
    const RowsView<T> key_values =
        shared_->take(context, shared_->key_values, plan.rows(), 2 * config.kv_heads * config.head_dim);
    shared_->apply(context, weights.key_value, normed, key_values);
    shared_->attention.store(context, plan, layer_, key_values);

    const bool last = plan.last_rows_only();
    const RowsView<T> inputs = last ? shared_->last_rows(context, plan, normed, shared_->last_normed) : normed;
    queries_ = shared_->take(context, shared_->queries, inputs.rows, query_width);
    shared_->apply(context, weights.query, inputs, queries_);
    const RowsView<T> mixed = shared_->take(context, shared_->mixed, inputs.rows, query_width);
    shared_->attention.attend(context, plan, layer_, queries_, mixed);
    count_attention(plan, query_width);
    if (last) {
      const RowsView<T> outputs = shared_->last_rows(context, plan, hidden, shared_->last_hidden);
      shared_->accumulate(context, weights.output, mixed, outputs);
      shared_->put_back(context, plan, outputs, hidden);
    } else {
      shared_->accumulate(context, weights.output, mixed, hidden);
    }
  }

  lazyllm::QueryRows<T> queries(const lazyllm::LayerPlan&) const {
    const ModelConfig& config = shared_->model->config();
    return {queries_.data, queries_.stride, config.head_dim, config.heads, config.head_dim, attention_scale(config)};
  }

  auto keys(const lazyllm::LayerPlan&, Index s) const { return shared_->attention.keys(s, layer_); }

 private:
  void count_attention(const lazyllm::LayerPlan& plan, Index query_width) {
    double visible = 0;
    if (plan.last_rows_only()) {
      visible = static_cast<double>(std::ssize(plan.keys()));
    } else {
      for (const Position limit : plan.key_limits()) visible += limit;
    }
    shared_->operations += 4 * visible * static_cast<double>(query_width);
  }

  Shared<T, Device>* shared_;
  Index layer_;
  RowsView<T> queries_;
};

/// Norm, gated MLP and residual of one layer, as `lazyllm::FeedForward` asks for it.
template <class T, class Device = CpuDevice>
class FeedForwardBlock {
 public:
  using Context = typename Device::Context;

  FeedForwardBlock(Shared<T, Device>* shared, Index layer) : shared_(shared), layer_(layer) {}

  void feed_forward(Context& context, RowsView<T> hidden) {
    const ModelConfig& config = shared_->model->config();
    const auto& weights = shared_->model->layer(layer_);
    for (Index first = 0; first < hidden.rows; first += Device::feed_forward_rows) {
      const Index rows = std::min(Device::feed_forward_rows, hidden.rows - first);
      const RowsView<T> part = hidden.subrows(first, rows);
      const RowsView<T> normed = shared_->take(context, shared_->normed, rows, config.hidden_size);
      const RowsView<T> gate_up = shared_->take(context, shared_->gate_up, rows, 2 * config.intermediate_size);
      const RowsView<T> gated = shared_->take(context, shared_->gated, rows, config.intermediate_size);
      Device::rms_norm(context, RowsView<const T>(part), weights.feed_forward_norm,
                       static_cast<float>(config.norm_epsilon), normed);
      shared_->apply(context, weights.gate_up, normed, gate_up);
      Device::swiglu(context, RowsView<const T>(gate_up), gated);
      shared_->accumulate(context, weights.down, gated, part);
    }
  }

 private:
  Shared<T, Device>* shared_;
  Index layer_;
};

}  // namespace llama
