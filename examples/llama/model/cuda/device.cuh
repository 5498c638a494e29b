#pragma once

#include <cstddef>
#include <cstdint>
#include <lazyllm/cuda.cuh>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "examples/llama/kernels/cuda/attention.hpp"
#include "examples/llama/kernels/cuda/device_array.hpp"
#include "examples/llama/kernels/cuda/device_plan.hpp"
#include "examples/llama/kernels/cuda/download.hpp"
#include "examples/llama/kernels/cuda/launch_graphs.hpp"
#include "examples/llama/kernels/cuda/linear.hpp"
#include "examples/llama/kernels/cuda/pointwise.hpp"
#include "examples/llama/kernels/cuda/rotary.hpp"
#include "examples/llama/kernels/rotary_table.hpp"
#include "examples/llama/library.hpp"
#include "examples/llama/model/cuda/upload.cuh"
#include "examples/llama/model/decoder.hpp"
#include "examples/llama/model/model.hpp"

/// \file
/// The host on a CUDA device: `Model<T, CudaDevice>` and its decoders.
namespace llama {

/// A number of bytes, for messages.
inline std::string in_mebibytes(Index bytes) { return std::to_string((bytes + (Index{1} << 20) - 1) >> 20) + " MiB"; }

/// The error with what it happened at in front.
inline lazyllm::cuda_error error_at(const std::string& what, const lazyllm::cuda_error& error) {
  std::string_view reason = error.what();
  if (reason.starts_with("lazyllm: ")) reason.remove_prefix(9);
  return lazyllm::cuda_error(what + ": " + std::string(reason));
}

/// The keys of one sequence in one layer as the library's scoring reads them, contiguous or in pages.
template <class T>
struct CacheKeys {
  using value_type = T;

  lazyllm::PagedKeys<T> pages;  ///< without a page table: all in one piece
  Index kv_heads = 0;

  LAZYLLM_HOST_DEVICE constexpr const T* key(Position position, Index head) const {
    if (pages.page_table != nullptr) return pages.key(position, head);
    return pages.data + position * pages.position_stride + head * pages.head_stride;
  }
};

/// The CUDA backend with cuBLASLt. `T` is `float`, `__half` or `__nv_bfloat16`. One model serves one thread of the
/// caller at a time.
struct CudaDevice {
  using Context = lazyllm::cuda::Context;
  using Execution = cudaStream_t;
  using Vector = DeviceArray<float>;

  template <class T>
  using Sequence = lazyllm::cuda::Sequence<T>;
  template <class T>
  using Linear = DeviceLinear<T>;
  template <class T>
  using Plan = DevicePlan<T>;
  template <class T>
  using Array = DeviceArray<T>;

  static constexpr bool has_pages = true;   ///< of K/V
  static constexpr bool has_ranks = false;  ///< a model may be split over several processes

  /// Work that is captured once and replayed; see `LaunchGraphs`.
  template <class Value>
  using Graphs = LaunchGraphs<Value>;

  /// Rows that the feed-forward takes at once: enough to keep the device busy, few enough that the wide rows in between
  /// need little memory.
  static constexpr Index feed_forward_rows = 8192;

  template <class T>
  struct Table {
    DeviceArray<T> values;
    RowsView<const T> rows;
  };

  /// Reads each weight once, from where its file is mapped, and converts it on the device.
  template <class T>
  class Loader {
   public:
    explicit Loader(cudaStream_t stream) : context_(stream), gemm_(std::make_shared<Gemm>()) {}

    Vector vector(const Tensor& tensor) { return joined<float>({&tensor, 1}); }

    Linear<T> linear(std::span<const Tensor> weights, std::span<const Tensor> biases) {
      DeviceArray<T> bias;
      if (!biases.empty()) bias = joined<T>(biases);
      return Linear<T>(joined<T>(weights), std::move(bias), weights.front().shape.back(), gemm_);
    }

    Table<T> table(const WeightSource& source, const std::string& name, const std::vector<Index>& shape) {
      const Tensor tensor = source(name, shape);
      Table<T> table{joined<T>({&tensor, 1}), {}};
      table.rows = RowsView<const T>(table.values.data(), shape[0], shape[1]);
      return table;
    }

    /// The embedding table as a classifier, which must not outlive it.
    Linear<T> tied(const Table<T>& table, const Part&) const {
      return Linear<T>({table.rows.data, nullptr, table.rows.width, table.rows.rows}, gemm_);
    }

    /// Waits for all copies. Throws `lazyllm::cuda_error` if any failed.
    void finish() const { context_.synchronize(); }

   private:
    template <class To>
    DeviceArray<To> joined(std::span<const Tensor> tensors) {
      Index count = 0;
      for (const Tensor& tensor : tensors) count += tensor.elements();
      DeviceArray<To> values(context_, count);
      To* to = values.data();
      for (const Tensor& tensor : tensors) {
        switch (tensor.dtype) {
          case DType::f32: upload_as<float>(context_, tensor.data, tensor.elements(), to); break;
          case DType::f16: upload_as<__half>(context_, tensor.data, tensor.elements(), to); break;
          case DType::bf16: upload_as<__nv_bfloat16>(context_, tensor.data, tensor.elements(), to); break;
        }
        to += tensor.elements();
      }
      return values;
    }

    lazyllm::cuda::Context context_;
    std::shared_ptr<Gemm> gemm_;
  };

  /// The rotary angles of the positions below `positions`: the CPU's, copied.
  class Rotary {
   public:
    Rotary(Context& context, RotaryTable table, Index positions) {
      table.reserve(positions);
      view_ = table.view();
      const Index count = view_.positions * view_.head_dim;
      angles_ = DeviceArray<float>(context, count);
      upload_as<float>(context, reinterpret_cast<const std::byte*>(view_.angles), count, angles_.data());
      view_.angles = angles_.data();
    }
    RotaryView view() const { return view_; }

   private:
    DeviceArray<float> angles_;
    RotaryView view_;
  };

  /// Throws `lazyllm::cuda_error` with `what` the memory is for if there is not that much.
  template <class T>
  static Array<T> array(Context& context, Index count, const std::string& what) {
    try {
      return Array<T>(context, count);
    } catch (const lazyllm::cuda_error& error) {
      const Index bytes = count * static_cast<Index>(sizeof(T));
      throw error_at(what + " need " + in_mebibytes(bytes) + " on the device", error);
    }
  }

  template <class T>
  static void upload(Context& context, const std::vector<T>& values, T* to) {
    context.upload(std::span<const T>(values), to);
  }

  /// `rows` in host memory, once all work on the stream has run; valid until the context's next results.
  static RowsView<const float> download(Context& context, RowsView<float> rows) {
    return {llama::download(context, rows.data, rows.rows * rows.width), rows.rows, rows.width};
  }

  template <class T>
  static CacheKeys<T> key_view(const KvView<T>& view, Index layer, Index kv_heads) {
    return {{view.keys + layer * view.layer_stride, view.page_table, view.page_size, view.page_stride,
             view.position_stride, view.head_stride, kv_heads},
            kv_heads};
  }

  template <class T>
  static void embed(Context& context, const Table<T>& table, Tokens tokens, RowsView<T> rows) {
    llama::embed(context, table.rows, tokens, rows);
  }
  template <class T>
  static void rms_norm(Context& context, RowsView<const T> x, const Vector& weight, float epsilon, RowsView<T> out) {
    llama::rms_norm(context, x, weight.values(), epsilon, out);
  }
  template <class T>
  static void rms_norm_heads(Context& context, const Vector& weight, float epsilon, RowsView<T> heads) {
    llama::rms_norm_heads(context, weight.values(), epsilon, heads);
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

}  // namespace llama
