#pragma once

#include <Eigen/Core>

#include "examples/llama/kernels/cpu/attention.hpp"

namespace llama {

/// Rows of a sequence up to which `few_rows_attention` is faster than the kernels for any number (measured).
constexpr Index few_rows = 32;

/// Whether this processor and `shape` have `few_rows_attention`: AVX512-BF16, and heads of a multiple of 64.
bool has_few_rows_attention(const AttentionShape& shape);

/// `attention` for the few rows of a decode step, a drafted answer or revived tokens: every key and value is read once
/// for all rows and heads that share it, and chunks of keys are separate work. A row's result depends on its query and
/// the keys it sees only, bit for bit, however many rows there are. Throws as `attention`, and `std::invalid_argument`
/// where there is no such kernel.
void few_rows_attention(lazyllm::cpu::Context& context, const AttentionShape& shape,
                        const KeyValues<Eigen::bfloat16>& cache, Positions keys, Positions key_limits,
                        RowsView<const Eigen::bfloat16> queries, RowsView<Eigen::bfloat16> out);

}  // namespace llama
