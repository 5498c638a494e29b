#pragma once

#include "examples/llama/kernels/cpu/attention_task.hpp"

namespace llama {

/// `attention` for any number of queries, made for many.
template <class T>
void attend_in_blocks(lazyllm::cpu::Context& context, const AttentionTask<T>& task, BlockProducts products);

extern template void attend_in_blocks(lazyllm::cpu::Context&, const AttentionTask<float>&, BlockProducts);
extern template void attend_in_blocks(lazyllm::cpu::Context&, const AttentionTask<Eigen::bfloat16>&, BlockProducts);

}  // namespace llama
