#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <span>

#include "examples/llama/checkpoint/tensor.hpp"
#include "examples/llama/kernels/rotary_table.hpp"
#include "examples/llama/library.hpp"

/// The small operations of a layer. Each treats every row alone, in float, and rounds its result to T once; `T` is
/// `float` or `Eigen::bfloat16`. All throw `std::invalid_argument` when shapes do not fit each other.
namespace llama {

/// out = weight * x / sqrt(mean(x^2) + epsilon) for each row. `weight` `[width]`; `out` may be `x`.
template <class T>
void rms_norm(RowsView<const T> x, std::span<const float> weight, float epsilon, RowsView<T> out, int threads);

/// Rotates rows `[rows x heads * head_dim]`, of queries or keys or both side by side, in place. Row i is at
/// `positions[i]`, which `table` must have.
template <class T>
void rotate(RowsView<T> rows, Positions positions, const RotaryTable& table, int threads);

/// out `[rows x width]` = silu(gate) * up, where `gate_up` `[rows x 2 * width]` has the gate first.
template <class T>
void swiglu(RowsView<const T> gate_up, RowsView<T> out, int threads);

/// Row i of `out` `[tokens x width]` is row `tokens[i]` of `table` `[vocab x width]`, any element type.
/// Throws `std::invalid_argument` for a token outside 0 .. vocab - 1; `out` is then unchanged.
template <class T>
void embed(const Tensor& table, std::span<const std::int32_t> tokens, RowsView<T> out, int threads);

}  // namespace llama
