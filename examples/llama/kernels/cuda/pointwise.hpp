#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <lazyllm/cuda_context.hpp>
#include <span>

#include "examples/llama/library.hpp"

/// \file
/// The small operations of a layer on the device, with the names that they have on the CPU. Each treats every row
/// alone, in float, and rounds its result to T once; `T` is `float`, `__half` or `__nv_bfloat16`. All matrices and
/// weights are device memory, accessed by 16 bytes where widths and addresses allow it. All work is enqueued on the
/// context's stream. All throw `std::invalid_argument` when shapes do not fit each other, before any work is
/// enqueued, and `cuda_error` when a launch fails.
namespace llama {

/// out = weight * x / sqrt(mean(x^2) + epsilon) for each row. `weight` `[width]`, on the device; `out` may be `x`.
template <class T>
void rms_norm(lazyllm::cuda::Context& context, RowsView<const T> x, std::span<const float> weight, float epsilon,
              RowsView<T> out);

/// `rms_norm` of each head alone, in place: `heads` `[rows x count * head_dim]`, `weight` `[head_dim]`, on the device.
template <class T>
void rms_norm_heads(lazyllm::cuda::Context& context, std::span<const float> weight, float epsilon, RowsView<T> heads);

/// out `[rows x width]` = silu(gate) * up, where `gate_up` `[rows x 2 * width]` has the gate first.
template <class T>
void swiglu(lazyllm::cuda::Context& context, RowsView<const T> gate_up, RowsView<T> out);

/// Row i of `out` `[tokens x width]` is row `tokens[i]` of `table` `[vocab x width]`. `tokens` are the host's and may
/// be changed at once; their copy takes scratch memory of the context. Throws `std::invalid_argument` for a token
/// outside 0 .. vocab - 1.
template <class T>
void embed(lazyllm::cuda::Context& context, RowsView<const T> table, std::span<const std::int32_t> tokens,
           RowsView<T> out);

/// out[i] = the natural logarithm of the probability that row i of `logits` `[tokens x vocab]` gives to `tokens[i]`.
/// `tokens` and `out` are the host's; returns once `out` is there. Takes scratch memory of the context. Throws
/// `std::invalid_argument` for a token outside 0 .. vocab - 1.
void log_probabilities(lazyllm::cuda::Context& context, RowsView<const float> logits,
                       std::span<const std::int32_t> tokens, std::span<float> out);

#define LLAMA_DECLARE(T)                                                                                    \
  extern template void rms_norm(lazyllm::cuda::Context&, RowsView<const T>, std::span<const float>, float,  \
                                RowsView<T>);                                                               \
  extern template void rms_norm_heads(lazyllm::cuda::Context&, std::span<const float>, float, RowsView<T>); \
  extern template void swiglu(lazyllm::cuda::Context&, RowsView<const T>, RowsView<T>);                     \
  extern template void embed(lazyllm::cuda::Context&, RowsView<const T>, std::span<const std::int32_t>, RowsView<T>);
LLAMA_DECLARE(float)
LLAMA_DECLARE(__half)
LLAMA_DECLARE(__nv_bfloat16)
#undef LLAMA_DECLARE

}  // namespace llama
