#pragma once

#include <Eigen/Core>

#include "examples/llama/kernels/cpu/attention.hpp"

namespace llama {

/// Rows of a sequence up to which `attention_of` takes `few_rows_attention`: above, `attention` is as fast.
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

/// Attention of one layer for all sequences of `plan`, as `attention`: each by the kernel for its number of rows.
template <class T>
void attention_of(lazyllm::cpu::Context& context, const HostPlan<T>& plan, Index layer, RowsView<const T> queries,
                  RowsView<T> out);

#define LAZYLLM_DECLARE(T) \
  extern template void attention_of(lazyllm::cpu::Context&, const HostPlan<T>&, Index, RowsView<const T>, RowsView<T>);
LAZYLLM_DECLARE(float)
LAZYLLM_DECLARE(Eigen::bfloat16)
#undef LAZYLLM_DECLARE

}  // namespace llama
