#include "examples/llama/kernels/cuda/pointwise.hpp"

#include <algorithm>
#include <lazyllm/cuda.cuh>
#include <numbers>
#include <numeric>
#include <vector>

#include "examples/llama/kernels/cuda/block.cuh"
#include "examples/llama/kernels/cuda/download.hpp"
#include "examples/llama/kernels/cuda/elements.cuh"
#include "examples/llama/kernels/cuda/launch.cuh"
#include "examples/llama/kernels/cuda/layout.hpp"
#include "examples/llama/kernels/cuda/mma.cuh"
#include "examples/llama/library.hpp"

namespace llama {
namespace kernels {

constexpr int max_threads = 256;

/// One block for each `width` elements of a row. The second read of them is from the processor's cache.
template <int count, class T>
__global__ void __launch_bounds__(max_threads)
    normalize(const RowsView<const T> x, const float* weight, Index width, float epsilon, const RowsView<T> out) {
  const Index first = static_cast<Index>(blockIdx.y) * width;
  const T* const from = x.row(blockIdx.x) + first;
  T* const to = out.row(blockIdx.x) + first;
  const int step = threads() * count;
  float squares = 0;
  for (Index i = thread() * count; i < width; i += step) {
    const auto pack = load<count>(from + i);
#pragma unroll
    for (int j = 0; j < count; ++j) squares += widen(pack.values[j]) * widen(pack.values[j]);
  }
  const float factor = 1 / sqrtf(block_sum(squares) / static_cast<float>(width) + epsilon);
  for (Index i = thread() * count; i < width; i += step) {
    auto pack = load<count>(from + i);
    float weights[count];
    load_floats(weight + i, weights);
#pragma unroll
    for (int j = 0; j < count; ++j) pack.values[j] = round_to<T>(widen(pack.values[j]) * factor * weights[j]);
    store(pack, to + i);
  }
}

template <int count, class T>
__global__ void __launch_bounds__(max_threads) gate_row(const RowsView<const T> gate_up, const RowsView<T> out) {
  const Index i = (static_cast<Index>(blockIdx.y) * threads() + thread()) * count;
  if (i >= out.width) return;
  const T* const from = gate_up.row(blockIdx.x) + i;
  auto gate = load<count>(from);
  const auto up = load<count>(from + out.width);
#pragma unroll
  for (int j = 0; j < count; ++j) {
    const float x = widen(gate.values[j]);
    gate.values[j] =
        round_to<T>(fast_divide(x, 1 + fast_exp2(-x * std::numbers::log2e_v<float>)) * widen(up.values[j]));
  }
  store(gate, out.row(blockIdx.x) + i);
}

/// One block for each row.
__global__ void __launch_bounds__(max_threads)
    log_probability_of(const RowsView<const float> logits, const std::int32_t* tokens, float* out) {
  const float* const row = logits.row(blockIdx.x);
  float highest = -INFINITY;
  for (Index i = thread(); i < logits.width; i += threads()) highest = fmaxf(highest, row[i]);
  highest = block_max(highest);
  float sum = 0;
  for (Index i = thread(); i < logits.width; i += threads()) sum += expf(row[i] - highest);
  sum = block_sum(sum);
  if (thread() == 0) out[blockIdx.x] = row[tokens[blockIdx.x]] - highest - logf(sum);
}

}  // namespace kernels

namespace {

void check(const char* what, bool fits) {
  if (!fits) fail(what, ": the shapes of the arguments do not fit each other");
}

void check_tokens(const char* what, std::span<const std::int32_t> tokens, Index vocab) {
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= vocab) fail(what, ": token ", token, " is out of range 0 to ", vocab - 1);
  }
}

/// Whole warps for so much work, up to `max_threads`.
unsigned threads_for(Index work) {
  return static_cast<unsigned>(std::clamp<Index>((work + 31) / 32 * 32, 32, kernels::max_threads));
}

/// Each part of a row that is as wide as `weight` over its root mean square; `out` may be `x`.
template <class T>
void normalize(lazyllm::cuda::Context& context, RowsView<const T> x, std::span<const float> weight, float epsilon,
               RowsView<T> out) {
  if (x.rows == 0 || x.width == 0) return;
  const Index width = std::ssize(weight);
  const dim3 blocks(static_cast<unsigned>(x.rows), static_cast<unsigned>(x.width / width));
  const auto launch = [&](auto kernel, Index count) {
    kernels::launch(context, blocks, threads_for(width / count), kernel, x, weight.data(), width, epsilon, out);
  };
  constexpr int whole = kernels::whole_pack<T>;
  if (kernels::by_16_bytes<T>({x.data, weight.data(), out.data}, x.stride, out.stride, width)) {
    launch(kernels::normalize<whole, T>, whole);
  } else {
    launch(kernels::normalize<1, T>, 1);
  }
}

}  // namespace

template <class T>
void rms_norm(lazyllm::cuda::Context& context, RowsView<const T> x, std::span<const float> weight, float epsilon,
              RowsView<T> out) {
  check("rms_norm", x.rows == out.rows && x.width == out.width && x.width == std::ssize(weight));
  normalize(context, x, weight, epsilon, out);
}

template <class T>
void rms_norm_heads(lazyllm::cuda::Context& context, std::span<const float> weight, float epsilon, RowsView<T> heads) {
  check("rms_norm_heads", !weight.empty() && heads.width % std::ssize(weight) == 0);
  normalize(context, RowsView<const T>(heads), weight, epsilon, heads);
}

template <class T>
void swiglu(lazyllm::cuda::Context& context, RowsView<const T> gate_up, RowsView<T> out) {
  check("swiglu", gate_up.rows == out.rows && gate_up.width == 2 * out.width);
  if (out.rows == 0 || out.width == 0) return;
  const auto launch = [&](auto kernel, Index count) {
    const unsigned threads = threads_for(out.width / count);
    const auto blocks = static_cast<unsigned>((out.width / count + threads - 1) / threads);
    kernels::launch(context, dim3(static_cast<unsigned>(out.rows), blocks), threads, kernel, gate_up, out);
  };
  constexpr int whole = kernels::whole_pack<T>;
  if (kernels::by_16_bytes<T>({gate_up.data, out.data}, gate_up.stride, out.stride, out.width)) {
    launch(kernels::gate_row<whole, T>, whole);
  } else {
    launch(kernels::gate_row<1, T>, 1);
  }
}

template <class T>
void embed(lazyllm::cuda::Context& context, RowsView<const T> table, std::span<const std::int32_t> tokens,
           RowsView<T> out) {
  check("embed", out.rows == std::ssize(tokens) && out.width == table.width);
  check_tokens("embed", tokens, table.rows);
  const std::vector<Index> from(tokens.begin(), tokens.end());
  std::vector<Index> to(tokens.size());
  std::iota(to.begin(), to.end(), Index{0});
  lazyllm::copy_rows(context, table, from, out, to);
}

void log_probabilities(lazyllm::cuda::Context& context, RowsView<const float> logits,
                       std::span<const std::int32_t> tokens, std::span<float> out) {
  check("log_probabilities", logits.rows == std::ssize(tokens) && tokens.size() == out.size());
  check_tokens("log_probabilities", tokens, logits.width);
  if (tokens.empty()) return;
  kernels::Layout layout;
  const Index tokens_at = layout.add<std::int32_t>(std::ssize(tokens));
  const Index results_at = layout.add<float>(std::ssize(tokens));
  std::byte* const memory = context.workspace(layout.bytes());
  auto* const device_tokens = kernels::at<std::int32_t>(memory, tokens_at);
  auto* const results = kernels::at<float>(memory, results_at);
  context.upload(tokens, device_tokens);
  kernels::launch(context, dim3(static_cast<unsigned>(logits.rows)), threads_for(logits.width),
                  kernels::log_probability_of, logits, static_cast<const std::int32_t*>(device_tokens), results);
  const float* const values = download(context, results, std::ssize(tokens));
  std::copy_n(values, out.size(), out.begin());
}

#define LLAMA_INSTANTIATE(T)                                                                                      \
  template void rms_norm(lazyllm::cuda::Context&, RowsView<const T>, std::span<const float>, float, RowsView<T>); \
  template void rms_norm_heads(lazyllm::cuda::Context&, std::span<const float>, float, RowsView<T>);              \
  template void swiglu(lazyllm::cuda::Context&, RowsView<const T>, RowsView<T>);                                  \
  template void embed(lazyllm::cuda::Context&, RowsView<const T>, std::span<const std::int32_t>, RowsView<T>);
LLAMA_INSTANTIATE(float)
LLAMA_INSTANTIATE(__half)
LLAMA_INSTANTIATE(__nv_bfloat16)
#undef LLAMA_INSTANTIATE

}  // namespace llama
