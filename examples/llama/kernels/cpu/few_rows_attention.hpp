#pragma once

#include <Eigen/Core>

#include "examples/llama/kernels/cpu/attention_task.hpp"

namespace llama {

/// Whether `few_rows_attention` is faster than attention in blocks for `rows` rows on this processor.
template <class T>
bool suits_few_rows(const AttentionShape& shape, Index rows);

/// Who computes a few rows. `automatic`: a kernel that copies K and V into pairs of bfloat16, where this processor has
/// the instruction for them, T and the width of heads suit, and more than nine queries share a key head; else the
/// kernel that reads K and V in place.
enum class FewRowsKernel { automatic, in_place };

/// `attention` for the few rows of a decode step, a drafted answer or revived tokens: every key and value is read once
/// for all rows and heads that share it, and chunks of keys are separate work. By one kernel, a row's result depends on
/// its query and the keys it sees only, bit for bit, however many rows there are. `task` has been checked, and has a
/// row.
template <class T>
void few_rows_attention(lazyllm::cpu::Context& context, const AttentionTask<T>& task,
                        FewRowsKernel kernel = FewRowsKernel::automatic);

}  // namespace llama
