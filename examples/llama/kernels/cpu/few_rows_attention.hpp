#pragma once

#include <Eigen/Core>

#include "examples/llama/kernels/cpu/attention_task.hpp"

namespace llama {

/// Whether `few_rows_attention` is faster than attention in blocks for `rows` rows on this processor (measured).
template <class T>
bool suits_few_rows(const AttentionShape& shape, Index rows);

/// `attention` for the few rows of a decode step, a drafted answer or revived tokens: every key and value is read once
/// for all rows and heads that share it, and chunks of keys are separate work. A row's result depends on its query and
/// the keys it sees only, bit for bit, however many rows there are. `task` has been checked, and has a row.
template <class T>
void few_rows_attention(lazyllm::cpu::Context& context, const AttentionTask<T>& task);

}  // namespace llama
