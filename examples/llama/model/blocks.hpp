#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "examples/llama/kernels/attention.hpp"
#include "examples/llama/kernels/pointwise.hpp"
#include "examples/llama/model/kv_cache.hpp"
#include "examples/llama/model/model.hpp"
#include "lazyllm/lazyllm.hpp"

namespace lazyllm::llama {

/// What the blocks of all layers share: weights, the caches of the sequences of the running step, and buffers.
template <class T>
struct Shared {
  const Model<T>* model = nullptr;
  std::vector<KvCache<T>*> caches;  ///< in the order of the step's sequences
  RotaryTable rotary;               ///< with all positions that the caches have room for
  double operations = 0;            ///< floating-point operations done so far, of linear layers and attention
  AttentionWorkspace attention = {};
  cpu::Context::Buffer<T> normed = {}, queries = {}, key_values = {}, mixed = {}, gate_up = {}, gated = {};

  /// The first `rows` rows of `buffer`, which is grown to hold them.
  static Rows<T> take(cpu::Context& context, cpu::Context::Buffer<T>& buffer, Index rows, Index width) {
    buffer.reserve(context, rows, width);
    return buffer.rows().subrows(0, rows);
  }

  /// Counts a matrix product of `rows` rows.
  void count(Index rows, const Linear<T>& linear) {
    operations += 2.0 * static_cast<double>(rows) * static_cast<double>(linear.in() * linear.out());
  }
};

/// Attention of one layer, as `lazyllm::Attention` asks for it.
template <class T>
class AttentionBlock {
 public:
  AttentionBlock(Shared<T>* shared, Index layer) : shared_(shared), layer_(layer) {}

  void attend(cpu::Context& context, const LayerPlan& plan, Rows<T> hidden) {
    const ModelConfig& config = shared_->model->config();
    const auto& weights = shared_->model->layer(layer_);
    const int threads = context.threads();
    const Index rows = plan.rows();
    const Index kv_width = config.kv_heads * config.head_width;

    const Rows<T> normed = Shared<T>::take(context, shared_->normed, rows, config.width);
    rms_norm(Rows<const T>(hidden), weights.attention_norm, static_cast<float>(config.norm_epsilon), normed, threads);

    const Rows<T> key_values = Shared<T>::take(context, shared_->key_values, rows, 2 * kv_width);
    weights.key_value.apply(Rows<const T>(normed), key_values, threads);
    shared_->count(rows, weights.key_value);
    rotate(Rows<T>(key_values.data, rows, kv_width, key_values.stride), plan.positions(), shared_->rotary, threads);

    queries_ = Shared<T>::take(context, shared_->queries, rows, config.heads * config.head_width);
    const Rows<T> mixed = Shared<T>::take(context, shared_->mixed, rows, config.heads * config.head_width);
    if (!plan.last_rows_only()) {
      project_queries(normed, plan.positions(), 0, rows, threads);
    }
    for (Index s = 0; s < plan.sequences(); ++s) {
      const SequencePlan part = plan.sequence(s);
      write(context, *shared_->caches[static_cast<std::size_t>(s)], part, key_values);
      const Index count = plan.last_rows_only() ? 1 : std::ssize(part.positions);
      const Index skipped = std::ssize(part.positions) - count;
      const Index first = part.first_row + skipped;
      if (plan.last_rows_only()) project_queries(normed, plan.positions(), first, count, threads);
      attend_sequence(s, part, skipped, mixed.subrows(first, count), threads);
      if (plan.last_rows_only()) project_output(mixed, hidden, first, count, threads);
    }
    if (!plan.last_rows_only()) project_output(mixed, hidden, 0, rows, threads);
  }

  QueryRows<T> queries(const LayerPlan&) const {
    const ModelConfig& config = shared_->model->config();
    return {queries_.data, queries_.stride, config.head_width, config.heads, config.head_width, scale()};
  }

  ContiguousKeys<T> keys(const LayerPlan&, Index s) const {
    return shared_->caches[static_cast<std::size_t>(s)]->keys(layer_);
  }

 private:
  float scale() const { return 1 / std::sqrt(static_cast<float>(shared_->model->config().head_width)); }

  void project_queries(Rows<T> normed, Positions positions, Index first, Index count, int threads) {
    const auto& linear = shared_->model->layer(layer_).query;
    const Rows<T> rows = queries_.subrows(first, count);
    linear.apply(Rows<const T>(normed.subrows(first, count)), rows, threads);
    shared_->count(count, linear);
    rotate(rows, positions.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)), shared_->rotary,
           threads);
  }

  void project_output(Rows<T> mixed, Rows<T> hidden, Index first, Index count, int threads) {
    const auto& linear = shared_->model->layer(layer_).output;
    linear.accumulate(Rows<const T>(mixed.subrows(first, count)), hidden.subrows(first, count), threads);
    shared_->count(count, linear);
  }

  /// Attention of a sequence's rows from `skipped` on, into `mixed`.
  void attend_sequence(Index s, const SequencePlan& part, Index skipped, Rows<T> mixed, int threads) {
    const ModelConfig& config = shared_->model->config();
    KvCache<T>& cache = *shared_->caches[static_cast<std::size_t>(s)];
    const Positions limits = part.key_limits.subspan(static_cast<std::size_t>(skipped));
    attention<T>({config.heads, config.kv_heads, config.head_width, scale()},
                 queries_.subrows(part.first_row + skipped, mixed.rows),
                 {cache.key(layer_, 0, 0), cache.value(layer_, 0, 0), cache.position_stride(), cache.head_stride()},
                 part.keys, limits, mixed, threads, shared_->attention);
    double visible = 0;
    for (const Position limit : limits) visible += limit;
    shared_->operations += 4 * visible * static_cast<double>(config.heads * config.head_width);
  }

  /// Copies the new K and V to their positions in the cache.
  void write(cpu::Context& context, KvCache<T>& cache, const SequencePlan& part, Rows<T> key_values) const {
    const Index kv_heads = shared_->model->config().kv_heads;
    const Index width = shared_->model->config().head_width;
    context.for_chunks(std::ssize(part.positions), 64, [&](Index first, Index last) {
      for (Index r = first; r < last; ++r) {
        const Position position = part.positions[static_cast<std::size_t>(r)];
        const T* row = key_values.row(part.first_row + r);
        for (Index head = 0; head < kv_heads; ++head) {
          std::copy_n(row + head * width, width, cache.key(layer_, position, head));
          std::copy_n(row + (kv_heads + head) * width, width, cache.value(layer_, position, head));
        }
      }
    });
  }

  Shared<T>* shared_;
  Index layer_;
  Rows<T> queries_;
};

/// Norm, gated MLP and residual of one layer, as `lazyllm::FeedForward` asks for it.
template <class T>
class FeedForwardBlock {
 public:
  FeedForwardBlock(Shared<T>* shared, Index layer) : shared_(shared), layer_(layer) {}

  void feed_forward(cpu::Context& context, Rows<T> hidden) {
    const ModelConfig& config = shared_->model->config();
    const auto& weights = shared_->model->layer(layer_);
    const int threads = context.threads();
    // In chunks, so that the wide rows in between stay in the processor's cache and need little memory.
    constexpr Index chunk = 512;
    for (Index first = 0; first < hidden.rows; first += chunk) {
      const Index rows = std::min(chunk, hidden.rows - first);
      const Rows<T> part = hidden.subrows(first, rows);
      const Rows<T> normed = Shared<T>::take(context, shared_->normed, rows, config.width);
      const Rows<T> gate_up = Shared<T>::take(context, shared_->gate_up, rows, 2 * config.ffn_width);
      const Rows<T> gated = Shared<T>::take(context, shared_->gated, rows, config.ffn_width);
      rms_norm(Rows<const T>(part), weights.feed_forward_norm, static_cast<float>(config.norm_epsilon), normed,
               threads);
      weights.gate_up.apply(Rows<const T>(normed), gate_up, threads);
      swiglu(Rows<const T>(gate_up), gated, threads);
      weights.down.accumulate(Rows<const T>(gated), part, threads);
      shared_->count(rows, weights.gate_up);
      shared_->count(rows, weights.down);
    }
  }

 private:
  Shared<T>* shared_;
  Index layer_;
};

}  // namespace lazyllm::llama
