#pragma once

#include <array>
#include <lazyllm/lazyllm.hpp>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "examples/llama/kernels/cpu/attention.hpp"
#include "examples/llama/kernels/cpu/large_pages.hpp"
#include "examples/llama/kernels/cpu/linear.hpp"
#include "examples/llama/kernels/cpu/pointwise.hpp"
#include "examples/llama/kernels/cpu/rotary.hpp"
#include "examples/llama/model/decoder.hpp"
#include "examples/llama/model/host_memory.hpp"

/// \file
/// The host on the CPU: models and decoders without a second template argument are these.
namespace llama {

/// The values of T in host memory, in large pages.
template <class T>
class HostArray {
 public:
  HostArray() = default;
  HostArray(HostArray&&) noexcept = default;
  HostArray& operator=(HostArray&&) noexcept = default;

  /// Uninitialised.
  explicit HostArray(Index count) : values_(large_page_array<T>(count, Pages::own)), count_(count) {}

  T* data() const { return values_.get(); }
  Index bytes() const { return count_ * static_cast<Index>(sizeof(T)); }

 private:
  std::shared_ptr<T> values_;
  Index count_ = 0;
};

/// How a model runs on the CPU. Made from a number of threads where that is all.
struct CpuExecution {
  CpuExecution(int threads_, WeightFormat weights_ = WeightFormat::as_type) : threads(threads_), weights(weights_) {}
  operator int() const { return threads; }

  int threads;
  WeightFormat weights;
};

/// The CPU backend: Eigen, oneDNN where the build has it, and kernels of its own. `T` is `float` or `Eigen::bfloat16`.
struct CpuDevice {
  using Context = lazyllm::cpu::Context;
  using Execution = CpuExecution;
  using Vector = std::vector<float>;

  template <class T>
  using Sequence = lazyllm::cpu::Sequence<T>;
  template <class T>
  using Linear = HostLinear<T>;
  template <class T>
  using Plan = HostPlan<T>;
  template <class T>
  using Array = HostArray<T>;

  static constexpr bool has_pages = false;  ///< of K/V
  static constexpr bool has_ranks = true;   ///< a model may be split over several processes

  /// Rows that the feed-forward takes at once, so that the wide rows in between stay in the processor's cache and need
  /// little memory.
  static constexpr Index feed_forward_rows = 512;

  /// An embedding table in its file.
  template <class T>
  struct Table {
    WeightSource source;  // keeps the file
    Tensor tensor;
  };

  /// Packs weights for the GEMM library.
  template <class T>
  struct Loader {
    CpuExecution execution;

    Vector vector(const Tensor& tensor) const {
      Vector values(static_cast<std::size_t>(tensor.elements()));
      to_float(tensor, 0, values);
      return values;
    }

    Linear<T> linear(std::span<const Tensor> weights, std::span<const Tensor> biases) const {
      return Linear<T>(weights, biases, execution.threads, execution.weights);
    }

    Table<T> table(const WeightSource& source, const std::string& name, const std::vector<Index>& shape) const {
      return {source, source(name, shape)};
    }

    /// The rows `vocab` of the embedding table as a classifier.
    Linear<T> tied(const Table<T>& table, const Part& vocab) const {
      return linear(std::array{rows_of(table.tensor, vocab.first, vocab.count)}, {});
    }

    void finish() const {}
  };

  /// The rotary angles of the positions below `positions`.
  class Rotary {
   public:
    Rotary(Context&, RotaryTable table, Index positions) : table_(std::move(table)) { table_.reserve(positions); }
    RotaryView view() const { return table_.view(); }

   private:
    RotaryTable table_;
  };

  /// Throws `std::runtime_error` with `what` the memory is for if there is not that much.
  template <class T>
  static Array<T> array(Context&, Index count, const std::string& what) {
    try {
      return Array<T>(count);
    } catch (const std::bad_alloc&) {
      throw std::runtime_error(not_enough_memory(what, static_cast<double>(count) * sizeof(T)));
    }
  }

  template <class T>
  static void upload(Context&, const std::vector<T>& values, T* to) {
    std::ranges::copy(values, to);
  }

  /// `rows` in host memory, until the next call.
  static RowsView<const float> download(Context&, RowsView<float> rows) { return rows; }

  template <class T>
  static lazyllm::ContiguousKeys<T> key_view(const KvView<T>& view, Index layer, Index kv_heads) {
    return {view.keys + layer * view.layer_stride, view.position_stride, view.head_stride, kv_heads};
  }

  template <class T>
  static void embed(Context& context, const Table<T>& table, Tokens tokens, RowsView<T> rows) {
    llama::embed(context, table.tensor, tokens, rows);
  }
  /// y += x.
  template <class T>
  static void add(Context& context, RowsView<const float> x, RowsView<T> y) {
    llama::add(context, x, y);
  }
  template <class T>
  static void rms_norm(Context& context, RowsView<const T> x, const Vector& weight, float epsilon, RowsView<T> out) {
    llama::rms_norm(context, x, weight, epsilon, out);
  }
  template <class T>
  static void rms_norm_heads(Context& context, const Vector& weight, float epsilon, RowsView<T> heads) {
    llama::rms_norm_heads(context, weight, epsilon, heads);
  }
  template <class T>
  static void swiglu(Context& context, RowsView<const T> gate_up, RowsView<T> out) {
    llama::swiglu(context, gate_up, out);
  }
  template <class T>
  static void rotate(Context& context, const Plan<T>& plan, const RotaryView& table, RowsView<T> queries) {
    llama::rotate(context, plan, table, queries);
  }
  template <class T>
  static void write_key_values(Context& context, const Plan<T>& plan, Index layer, const RotaryView& table,
                               RowsView<const T> key_values) {
    llama::write_key_values(context, plan, layer, table, key_values);
  }
  template <class T>
  static void attention(Context& context, const Plan<T>& plan, Index layer, RowsView<const T> queries,
                        RowsView<T> out) {
    llama::attention(context, plan, layer, queries, out);
  }
  static void log_probabilities(Context& context, RowsView<const float> logits, Tokens tokens, std::span<float> out) {
    llama::log_probabilities(context, logits, tokens, out);
  }
};

extern template class Model<float>;
extern template class Model<Eigen::bfloat16>;

}  // namespace llama
