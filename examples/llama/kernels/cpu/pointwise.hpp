#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <lazyllm/lazyllm.hpp>
#include <span>

#include "examples/llama/checkpoint/tensor.hpp"
#include "examples/llama/library.hpp"

/// \file
/// The small operations of a layer on the CPU, with the names that they have on a CUDA device. Each treats every row
/// alone, in float, and rounds its result to T once; `T` is `float` or `Eigen::bfloat16`. All throw
/// `std::invalid_argument` when shapes do not fit each other.
namespace llama {

/// out = weight * x / sqrt(mean(x^2) + epsilon) for each row. `weight` `[width]`; `out` may be `x`.
template <class T>
void rms_norm(lazyllm::cpu::Context& context, RowsView<const T> x, std::span<const float> weight, float epsilon,
              RowsView<T> out);

/// `rms_norm` of each head alone, in place: `heads` `[rows x count * head_dim]`, `weight` `[head_dim]`.
template <class T>
void rms_norm_heads(lazyllm::cpu::Context& context, std::span<const float> weight, float epsilon, RowsView<T> heads);

/// out `[rows x width]` = silu(gate) * up, where `gate_up` `[rows x 2 * width]` has the gate first.
template <class T>
void swiglu(lazyllm::cpu::Context& context, RowsView<const T> gate_up, RowsView<T> out);

/// y += x, of the same shape.
template <class T>
void add(lazyllm::cpu::Context& context, RowsView<const float> x, RowsView<T> y);

/// Row i of `out` `[tokens x width]` is row `tokens[i]` of `table` `[vocab x width]`, any element type.
/// Throws `std::invalid_argument` for a token outside 0 .. vocab - 1; `out` is then unchanged.
template <class T>
void embed(lazyllm::cpu::Context& context, const Tensor& table, std::span<const std::int32_t> tokens, RowsView<T> out);

/// out[i] = the natural logarithm of the probability that row i of `logits` `[tokens x vocab]` gives to `tokens[i]`.
/// Throws `std::invalid_argument` for a token outside 0 .. vocab - 1.
void log_probabilities(lazyllm::cpu::Context& context, RowsView<const float> logits,
                       std::span<const std::int32_t> tokens, std::span<float> out);

}  // namespace llama
