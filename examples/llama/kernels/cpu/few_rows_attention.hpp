#pragma once

#include <Eigen/Core>

#include "examples/llama/kernels/cpu/attention.hpp"

namespace llama {

/// Rows of a sequence up to which `few_rows_attention` is faster than attention in blocks (measured).
constexpr Index few_rows = 32;

/// `attention` for the few rows of a decode step, a drafted answer or revived tokens: every key and value is read once
/// for all rows and heads that share it, and chunks of keys are separate work. A row's result depends on its query and
/// the keys it sees only, bit for bit, however many rows there are. Throws as `attention`.
template <class T>
void few_rows_attention(lazyllm::cpu::Context& context, const AttentionShape& shape, const KeyValues<T>& cache,
                        Positions keys, Positions key_limits, RowsView<const T> queries, RowsView<T> out);

}  // namespace llama
