#pragma once

#include <lazyllm/cuda.cuh>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "examples/llama/kernels/cuda/attention.hpp"
#include "examples/llama/kernels/cuda/block.cuh"
#include "examples/llama/kernels/cuda/device_array.hpp"
#include "examples/llama/kernels/cuda/device_plan.hpp"
#include "examples/llama/kernels/cuda/gemm.hpp"
#include "examples/llama/kernels/cuda/launch.cuh"
#include "examples/llama/kernels/cuda/pointwise.hpp"
#include "examples/llama/kernels/cuda/rotary.hpp"
#include "examples/llama/kernels/rotary_table.hpp"
#include "examples/llama/library.hpp"
#include "examples/llama/model/decoder.hpp"
#include "examples/llama/model/kv_cache.hpp"
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

/// Large copies go through pinned memory in pieces of this size, some of which are under way at a time.
inline constexpr Index upload_bytes = Index{2} << 20;

namespace kernels {

inline constexpr unsigned convert_threads = 256;

template <class From, class To>
__global__ void __launch_bounds__(convert_threads) convert(const From* from, Index count, To* to) {
  const Index i = Index{blockIdx.x} * convert_threads + thread();
  if (i < count) to[i] = static_cast<To>(static_cast<float>(from[i]));
}

}  // namespace kernels

/// Enqueues a copy of `count` values at `from`, which need not be aligned, to the device as To. `from` may be changed
/// afterwards.
template <class From, class To>
void upload_as(lazyllm::cuda::Context& context, const std::byte* from, Index count, To* to) {
  constexpr Index piece = upload_bytes / static_cast<Index>(sizeof(From));
  for (Index first = 0; first < count; first += piece) {
    const Index values = std::min(piece, count - first);
    const Index bytes = values * static_cast<Index>(sizeof(From));
    const auto fill = [&](std::byte* host) {
      std::memcpy(host, from + first * static_cast<Index>(sizeof(From)), static_cast<std::size_t>(bytes));
    };
    if constexpr (std::is_same_v<From, To>) {
      context.upload(reinterpret_cast<std::byte*>(to + first), bytes, fill);
    } else {
      std::byte* const stored = context.workspace(bytes);
      context.upload(stored, bytes, fill);
      const auto blocks = static_cast<unsigned>((values + kernels::convert_threads - 1) / kernels::convert_threads);
      kernels::launch(context, dim3(blocks), kernels::convert_threads, kernels::convert<From, To>,
                      reinterpret_cast<const From*>(stored), values, to + first);
    }
  }
}

/// The keys of one sequence in one layer as the library's scoring reads them, contiguous or in pages.
template <class T>
struct CacheKeys {
  using value_type = T;

  lazyllm::PagedKeys<T> pages;  ///< without a page table: all in one piece
  Index heads = 0;

  LAZYLLM_HOST_DEVICE constexpr const T* key(Position position, Index head) const {
    if (pages.page_table != nullptr) return pages.key(position, head);
    return pages.data + position * pages.position_stride + head * pages.head_stride;
  }
};

/// Attention of a batch on the device, with the K/V of its sequences: each in one piece, or in pages of one pool.
template <class T>
class CudaAttention {
 public:
  /// Throws `lazyllm::cuda_error` without device memory.
  CudaAttention(lazyllm::cuda::Context& context, const ModelConfig& config, const KvRoom& room)
      : plan_({config.heads, config.kv_heads, config.head_dim, attention_scale(config)}) {
    const bool paged = room.page_size > 0;
    const Index page = paged ? room.page_size : room.capacity;
    const Index pages = (room.capacity + page - 1) / page;
    KvView<T> view;
    view.position_stride = config.head_dim;
    view.head_stride = page * view.position_stride;
    view.page_stride = config.kv_heads * view.head_stride;
    view.layer_stride = room.sequences * pages * view.page_stride;
    view.capacity = pages * page;
    view.page_size = room.page_size;
    const Index values = config.layers * view.layer_stride;
    try {
      keys_ = DeviceArray<T>(context, values);
      values_ = DeviceArray<T>(context, values);
    } catch (const lazyllm::cuda_error& error) {
      const Index bytes = 2 * values * static_cast<Index>(sizeof(T));
      throw error_at("K/V of " + std::to_string(room.sequences) + " x " + std::to_string(room.capacity) +
                         " tokens need " + in_mebibytes(bytes) + " on the device",
                     error);
    }
    if (paged) {
      // The sequences take turns, as where pages are given out while they grow.
      std::vector<std::int32_t> tables;
      for (Index s = 0; s < room.sequences; ++s) {
        for (Index p = 0; p < pages; ++p) tables.push_back(static_cast<std::int32_t>(p * room.sequences + s));
      }
      page_tables_ = DeviceArray<std::int32_t>(context, std::ssize(tables));
      context.upload(std::span<const std::int32_t>(tables), page_tables_.data());
    }
    for (Index s = 0; s < room.sequences; ++s) {
      view.keys = keys_.data() + (paged ? 0 : s * view.page_stride);
      view.values = values_.data() + (paged ? 0 : s * view.page_stride);
      if (paged) view.page_table = page_tables_.data() + s * pages;
      caches_.push_back(view);
    }
    RotaryTable table(config.head_dim, config.rope_theta, config.rope_scaling, config.rope_interleaved);
    table.reserve(view.capacity);
    angles_ = DeviceArray<float>(context, view.capacity * config.head_dim);
    upload_as<float>(context, reinterpret_cast<const std::byte*>(table.cosines(0)), view.capacity * config.head_dim,
                     angles_.data());
    rotary_ = {angles_.data(), view.capacity, config.head_dim, config.rope_interleaved};
  }

  /// Rotates the keys in `key_values` `[plan.rows() x 2 * kv_heads * head_dim]` on the way to their positions in the
  /// caches; the values go along.
  void store(lazyllm::cuda::Context& context, const lazyllm::LayerPlan& plan, Index layer, RowsView<T> key_values) {
    plan_.update(context, plan, caches_);
    write_key_values(context, plan_, layer, rotary_, RowsView<const T>(key_values));
  }

  /// Rotates `queries` in place and writes what they attend to, to `mixed`. Both have a row for each of the plan of the
  /// last `store` or, where `plan.last_rows_only()`, for each sequence.
  void attend(lazyllm::cuda::Context& context, const lazyllm::LayerPlan&, Index layer, RowsView<T> queries,
              RowsView<T> mixed) {
    rotate(context, plan_, rotary_, queries);
    attention(context, plan_, layer, RowsView<const T>(queries), mixed);
  }

  CacheKeys<T> keys(Index s, Index layer) const {
    const Index heads = plan_.shape().kv_heads;
    return {caches_[static_cast<std::size_t>(s)].paged_keys(layer, heads), heads};
  }

  /// Of all sequences.
  Index kv_bytes() const { return keys_.bytes() + values_.bytes(); }

 private:
  DevicePlan<T> plan_;
  DeviceArray<T> keys_, values_;
  DeviceArray<std::int32_t> page_tables_;
  DeviceArray<float> angles_;
  RotaryView rotary_;
  std::vector<KvView<T>> caches_;
};

/// The CUDA backend with cuBLASLt. `T` is `float`, `__half` or `__nv_bfloat16`. One model serves one thread of the
/// caller at a time.
struct CudaDevice {
  using Context = lazyllm::cuda::Context;
  using Execution = cudaStream_t;
  using Vector = DeviceArray<float>;

  template <class T>
  using Sequence = lazyllm::cuda::Sequence<T, lazyllm::cuda::PooledStorage>;
  template <class T>
  using Attention = CudaAttention<T>;

  /// A dense layer; `weights` is empty where they are the embedding table's.
  template <class T>
  struct Linear {
    LinearView<T> view;
    DeviceArray<T> weights, bias;
    std::shared_ptr<Gemm> gemm;  // of the whole model

    Index in() const { return view.in; }
    Index out() const { return view.out; }
  };

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
      Linear<T> linear{{}, joined<T>(weights), {}, gemm_};
      if (!biases.empty()) linear.bias = joined<T>(biases);
      const Index in = weights.front().shape.back();
      const auto out = static_cast<Index>(linear.weights.values().size()) / in;
      linear.view = {linear.weights.data(), linear.bias.data(), in, out};
      return linear;
    }

    Table<T> table(const WeightSource& source, const std::string& name, const std::vector<Index>& shape) {
      const Tensor tensor = source(name, shape);
      Table<T> table{joined<T>({&tensor, 1}), {}};
      table.rows = RowsView<const T>(table.values.data(), shape[0], shape[1]);
      return table;
    }

    /// The embedding table as a classifier, which must not outlive it.
    Linear<T> tied(const Table<T>& table) const {
      return {{table.rows.data, nullptr, table.rows.width, table.rows.rows}, {}, {}, gemm_};
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

  /// Rows that the feed-forward takes at once: enough to keep the device busy, few enough that the wide rows in between
  /// need little memory.
  static constexpr Index feed_forward_rows = 8192;

  template <class T>
  static void embed(Context& context, const Table<T>& table, Tokens tokens, RowsView<T> rows) {
    llama::embed(context, table.rows, tokens, rows);
  }

  template <class T>
  static void rms_norm(Context& context, RowsView<const T> x, const Vector& weight, float epsilon, RowsView<T> out) {
    llama::rms_norm(context, x, weight.values(), epsilon, out);
  }

  template <class T>
  static void swiglu(Context& context, RowsView<const T> gate_up, RowsView<T> out) {
    llama::swiglu(context, gate_up, out);
  }

  template <class T, class Y>
  static void apply(Context& context, const Linear<T>& linear, RowsView<const T> x, RowsView<Y> y) {
    linear.gemm->apply(context, linear.view, x, y);
  }

  template <class T>
  static void accumulate(Context& context, const Linear<T>& linear, RowsView<const T> x, RowsView<T> y) {
    linear.gemm->accumulate(context, linear.view, x, y);
  }

  /// `rows` in host memory, once all work on the stream has run; valid until the context's next results.
  static RowsView<const float> download(Context& context, RowsView<float> rows) {
    const Index bytes = rows.rows * rows.width * static_cast<Index>(sizeof(float));
    auto* const host = reinterpret_cast<float*>(context.results(bytes));
    kernels::check(
        cudaMemcpyAsync(host, rows.data, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, context.stream()),
        "cudaMemcpyAsync");
    context.synchronize();
    return {host, rows.rows, rows.width};
  }
};

}  // namespace llama
