#include "bench/examples/llama/model/device_floor.hpp"

#include <cublasLt.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <string>

#include "bench/cuda/random.cuh"
#include "bench/cuda/stream.hpp"

#include "examples/llama/kernels/cuda/check.hpp"
#include "examples/llama/kernels/cuda/device_array.hpp"

namespace llama {
namespace {

using bf16 = __nv_bfloat16;

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw lazyllm::cuda_error(std::string(call) + ": " + cublasLtGetStatusString(status));
  }
}

template <class T>
struct Destroy {
  cublasStatus_t (*destroy)(T);
  void operator()(std::remove_pointer_t<T>* object) const { destroy(object); }
};

/// A cuBLASLt object that is destroyed with its owner.
template <class T>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroy<T>>;

template <class T, class... Arguments>
Owned<T> made(cublasStatus_t (*create)(T*, Arguments...), cublasStatus_t (*destroy)(T), Arguments... arguments) {
  T object = nullptr;
  check(create(&object, arguments...), "cublasLt create");
  return Owned<T>(object, Destroy<T>{destroy});
}

Owned<cublasLtMatrixLayout_t> matrix(Index rows, Index columns) {
  return made<cublasLtMatrixLayout_t, cudaDataType, std::uint64_t, std::uint64_t, std::int64_t>(
      cublasLtMatrixLayoutCreate, cublasLtMatrixLayoutDestroy, CUDA_R_16BF, static_cast<std::uint64_t>(rows),
      static_cast<std::uint64_t>(columns), rows);
}

/// Random numbers on the device.
DeviceArray<bf16> random_values(lazyllm::cuda::Context& context, Index count) {
  DeviceArray<bf16> values(context, count);
  lazyllm::bench::fill_random(context.stream(), values.data(), count, -1, 1);
  return values;
}

/// Times matrix products of cuBLASLt.
class Products {
 public:
  explicit Products(lazyllm::cuda::Context& context) : context_(&context) {}

  /// Milliseconds of x `[rows x in]` times the transpose of weights `[out x in]`.
  double milliseconds(Index rows, Index in, Index out) const {
    const DeviceArray<bf16> x = random_values(*context_, rows * in);
    const DeviceArray<bf16> weights = random_values(*context_, out * in);
    const DeviceArray<bf16> y = random_values(*context_, rows * out);
    // Column by column, as cuBLASLt sees the same memory.
    const auto x_layout = matrix(in, rows);
    const auto weights_layout = matrix(in, out);
    const auto y_layout = matrix(out, rows);
    const auto multiply = [&](const cublasLtMatmulAlgo_t& algorithm) {
      constexpr float one = 1;
      constexpr float zero = 0;
      check(cublasLtMatmul(library_.get(), product_.get(), &one, weights.data(), weights_layout.get(), x.data(),
                           x_layout.get(), &zero, y.data(), y_layout.get(), y.data(), y_layout.get(), &algorithm,
                           workspace_.data(), workspace_bytes, context_->stream()),
            "cublasLtMatmul");
    };
    std::array<cublasLtMatmulHeuristicResult_t, 8> proposals{};
    int count = 0;
    check(cublasLtMatmulAlgoGetHeuristic(library_.get(), product_.get(), weights_layout.get(), x_layout.get(),
                                         y_layout.get(), y_layout.get(), preference_.get(),
                                         static_cast<int>(proposals.size()), proposals.data(), &count),
          "cublasLtMatmulAlgoGetHeuristic");
    check(count == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS, "cublasLtMatmulAlgoGetHeuristic");
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < count; ++i) {
      if (proposals[static_cast<std::size_t>(i)].state != CUBLAS_STATUS_SUCCESS) continue;
      const cublasLtMatmulAlgo_t& algorithm = proposals[static_cast<std::size_t>(i)].algo;
      multiply(algorithm);
      best = std::min(
          best, lazyllm::bench::milliseconds_per_call(timer_, context_->stream(), 5, [&] { multiply(algorithm); }));
    }
    return best;
  }

 private:
  static constexpr std::size_t workspace_bytes = std::size_t{64} << 20;

  static Owned<cublasLtMatmulDesc_t> transposed_weights() {
    auto product = made<cublasLtMatmulDesc_t, cublasComputeType_t, cudaDataType_t>(
        cublasLtMatmulDescCreate, cublasLtMatmulDescDestroy, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    constexpr cublasOperation_t transposed = CUBLAS_OP_T;
    check(cublasLtMatmulDescSetAttribute(product.get(), CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
          "cublasLtMatmulDescSetAttribute");
    return product;
  }

  static Owned<cublasLtMatmulPreference_t> with_workspace() {
    auto preference = made<cublasLtMatmulPreference_t>(cublasLtMatmulPreferenceCreate, cublasLtMatmulPreferenceDestroy);
    check(cublasLtMatmulPreferenceSetAttribute(preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &workspace_bytes, sizeof(workspace_bytes)),
          "cublasLtMatmulPreferenceSetAttribute");
    constexpr std::uint32_t sums_in_float = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;  // as the engine's
    check(cublasLtMatmulPreferenceSetAttribute(preference.get(), CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                               &sums_in_float, sizeof(sums_in_float)),
          "cublasLtMatmulPreferenceSetAttribute");
    return preference;
  }

  lazyllm::cuda::Context* context_;
  Owned<cublasLtHandle_t> library_ = made<cublasLtHandle_t>(cublasLtCreate, cublasLtDestroy);
  Owned<cublasLtMatmulDesc_t> product_ = transposed_weights();
  Owned<cublasLtMatmulPreference_t> preference_ = with_workspace();
  DeviceArray<std::byte> workspace_{*context_, static_cast<Index>(workspace_bytes)};
  mutable lazyllm::bench::StreamTimer timer_;
};

/// Bytes per second that a copy of half a GiB reads and writes.
double copy_rate(lazyllm::cuda::Context& context) {
  constexpr std::size_t bytes = std::size_t{1} << 29;
  const DeviceArray<std::byte> source(context, static_cast<Index>(bytes));
  const DeviceArray<std::byte> target(context, static_cast<Index>(bytes));
  const auto copy = [&] {
    kernels::check(cudaMemcpyAsync(target.data(), source.data(), bytes, cudaMemcpyDeviceToDevice, context.stream()),
                   "cudaMemcpyAsync");
  };
  copy();
  lazyllm::bench::StreamTimer timer;
  return 2 * static_cast<double>(bytes) /
         (lazyllm::bench::milliseconds_per_call(timer, context.stream(), 10, copy) * 1e-3);
}

}  // namespace

DeviceFloor device_floor(const ModelConfig& config, Index prompt, Index batch, cudaStream_t stream) {
  const Index rows = prompt * batch;
  const Index query_width = config.heads * config.head_dim;
  const Index key_value_width = 2 * config.kv_heads * config.head_dim;
  const std::array<std::array<Index, 2>, 3> others{{{query_width, config.hidden_size},
                                                    {config.hidden_size, 2 * config.intermediate_size},
                                                    {config.intermediate_size, config.hidden_size}}};
  lazyllm::cuda::Context context(stream);
  const Products products(context);
  // The last layer computes K and V of all rows, and all else of each sequence's last row.
  double layer_ms = products.milliseconds(rows, config.hidden_size, key_value_width + query_width);
  double last_ms = products.milliseconds(rows, config.hidden_size, key_value_width) +
                   products.milliseconds(batch, config.hidden_size, query_width) +
                   products.milliseconds(batch, config.hidden_size, config.vocab);
  auto weights = static_cast<double>(config.hidden_size * (key_value_width + query_width));
  for (const auto& [in, out] : others) {
    layer_ms += products.milliseconds(rows, in, out);
    last_ms += products.milliseconds(batch, in, out);
    weights += static_cast<double>(in * out);
  }
  const auto tokens = static_cast<double>(prompt);
  const double attention = (2 * static_cast<double>(config.layers - 1) * tokens * (tokens + 1) + 4 * tokens) *
                           static_cast<double>(query_width * batch);
  DeviceFloor floor;
  floor.gemm_rate = 2 * static_cast<double>(rows) * weights / (layer_ms * 1e-3);
  floor.copy_rate = copy_rate(context);
  floor.gemm_ms = static_cast<double>(config.layers - 1) * layer_ms + last_ms;
  floor.attention_ms = attention / floor.gemm_rate * 1e3;
  return floor;
}

}  // namespace llama
