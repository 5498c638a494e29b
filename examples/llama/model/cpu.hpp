#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "examples/llama/kernels/attention.hpp"
#include "examples/llama/kernels/linear.hpp"
#include "examples/llama/kernels/pointwise.hpp"
#include "examples/llama/library.hpp"
#include "examples/llama/model/decoder.hpp"
#include "examples/llama/model/kv_cache.hpp"
#include "examples/llama/model/model.hpp"

/// \file
/// The host on the CPU: models and decoders without a second template argument are these.
namespace llama {

/// Attention of a batch with one cache for each sequence.
template <class T>
class CpuAttention {
 public:
  CpuAttention(lazyllm::cpu::Context&, const ModelConfig& config, const KvRoom& room)
      : shape_{config.heads, config.kv_heads, config.head_dim, attention_scale(config)},
        rotary_(config.head_dim, config.rope_theta, config.rope_scaling, config.rope_interleaved) {
    if (room.page_size != 0) fail("K/V pages of ", room.page_size, " tokens: on the CPU there are no pages");
    rotary_.reserve(room.capacity);
    for (Index s = 0; s < room.sequences; ++s) {
      caches_.emplace_back(config.layers, config.kv_heads, config.head_dim, room.capacity);
    }
  }

  /// Rotates the keys in `key_values` `[plan.rows() x 2 * kv_heads * head_dim]` and copies keys and values to their
  /// positions in the caches.
  void store(lazyllm::cpu::Context& context, const lazyllm::LayerPlan& plan, Index layer, RowsView<T> key_values) {
    const Index width = shape_.head_dim;
    const Index kv_width = shape_.kv_heads * width;
    rotate(RowsView<T>(key_values.data, key_values.rows, kv_width, key_values.stride), plan.positions(), rotary_,
           context.threads());
    for (Index s = 0; s < plan.sequences(); ++s) {
      const lazyllm::SequencePlan part = plan.sequence(s);
      auto& cache = caches_[static_cast<std::size_t>(s)];
      context.for_chunks(std::ssize(part.positions), 64, [&](Index first, Index last) {
        for (Index r = first; r < last; ++r) {
          const Position position = part.positions[static_cast<std::size_t>(r)];
          const T* row = key_values.row(part.first_row + r);
          for (Index head = 0; head < shape_.kv_heads; ++head) {
            std::copy_n(row + head * width, width, cache.key(layer, position, head));
            std::copy_n(row + kv_width + head * width, width, cache.value(layer, position, head));
          }
        }
      });
    }
  }

  /// Rotates `queries` in place and writes what they attend to, to `mixed`. Both have a row for each of the plan or,
  /// where `plan.last_rows_only()`, for each sequence.
  void attend(lazyllm::cpu::Context& context, const lazyllm::LayerPlan& plan, Index layer, RowsView<T> queries,
              RowsView<T> mixed) {
    for (Index s = 0; s < plan.sequences(); ++s) {
      const lazyllm::SequencePlan part = plan.sequence(s);
      auto& cache = caches_[static_cast<std::size_t>(s)];
      const Index rows = plan.last_rows_only() ? 1 : std::ssize(part.positions);
      const Index first = plan.last_rows_only() ? s : part.first_row;
      const RowsView<T> own = queries.subrows(first, rows);
      rotate(own, part.positions.last(static_cast<std::size_t>(rows)), rotary_, context.threads());
      attention<T>(shape_, own,
                   {cache.key(layer, 0, 0), cache.value(layer, 0, 0), cache.position_stride(), cache.head_stride()},
                   part.keys, part.key_limits.last(static_cast<std::size_t>(rows)), mixed.subrows(first, rows),
                   context.threads(), workspace_);
    }
  }

  lazyllm::ContiguousKeys<T> keys(Index s, Index layer) const {
    return caches_[static_cast<std::size_t>(s)].keys(layer);
  }

  /// Of all caches.
  Index kv_bytes() const { return caches_.front().bytes() * std::ssize(caches_); }

 private:
  AttentionShape shape_;
  RotaryTable rotary_;
  std::vector<KvCache<T>> caches_;
  AttentionWorkspace workspace_;
};

/// The CPU backend with Eigen or oneDNN. `T` is `float` or `Eigen::bfloat16`.
struct CpuDevice {
  using Context = lazyllm::cpu::Context;
  using Execution = int;  ///< number of threads
  using Vector = std::vector<float>;

  template <class T>
  using Sequence = lazyllm::cpu::Sequence<T, lazyllm::cpu::PooledStorage>;
  template <class T>
  using Linear = llama::Linear<T>;
  template <class T>
  using Attention = CpuAttention<T>;

  /// An embedding table in its file.
  template <class T>
  struct Table {
    WeightSource source;  // keeps the file
    Tensor tensor;
  };

  /// Packs weights for the GEMM library.
  template <class T>
  struct Loader {
    int threads;

    Vector vector(const Tensor& tensor) const {
      Vector values(static_cast<std::size_t>(tensor.elements()));
      to_float(tensor, 0, values);
      return values;
    }

    Linear<T> linear(std::span<const Tensor> weights, std::span<const Tensor> biases) const {
      return Linear<T>(weights, biases, threads);
    }

    Table<T> table(const WeightSource& source, const std::string& name, const std::vector<Index>& shape) const {
      return {source, source(name, shape)};
    }

    /// The embedding table as a classifier.
    Linear<T> tied(const Table<T>& table) const { return linear({&table.tensor, 1}, {}); }

    void finish() const {}
  };

  /// Rows that the feed-forward takes at once, so that the wide rows in between stay in the processor's cache and need
  /// little memory.
  static constexpr Index feed_forward_rows = 512;

  template <class T>
  static void embed(Context& context, const Table<T>& table, Tokens tokens, RowsView<T> rows) {
    llama::embed(table.tensor, tokens, rows, context.threads());
  }

  template <class T>
  static void rms_norm(Context& context, RowsView<const T> x, const Vector& weight, float epsilon, RowsView<T> out) {
    llama::rms_norm(x, std::span<const float>(weight), epsilon, out, context.threads());
  }

  template <class T>
  static void swiglu(Context& context, RowsView<const T> gate_up, RowsView<T> out) {
    llama::swiglu(gate_up, out, context.threads());
  }

  template <class T, class Y>
  static void apply(Context& context, const Linear<T>& linear, RowsView<const T> x, RowsView<Y> y) {
    linear.apply(x, y, context.threads());
  }

  template <class T>
  static void accumulate(Context& context, const Linear<T>& linear, RowsView<const T> x, RowsView<T> y) {
    linear.accumulate(x, y, context.threads());
  }

  /// `rows` in host memory, until the next call.
  static RowsView<const float> download(Context&, RowsView<float> rows) { return rows; }
};

extern template class Model<float>;
extern template class Model<Eigen::bfloat16>;

}  // namespace llama
