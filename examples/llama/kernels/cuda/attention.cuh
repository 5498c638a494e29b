#pragma once

#include "examples/llama/kernels/cuda/attention.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <numbers>
#include <type_traits>

#include "examples/llama/kernels/cuda/attention_plain.cuh"
#include "examples/llama/kernels/cuda/attention_tensor.cuh"
#include "examples/llama/kernels/cuda/causal_attention.hpp"
#include "examples/llama/kernels/cuda/layout.hpp"
#include "examples/llama/library.hpp"

namespace llama {

#ifdef LLAMA_HAS_CUDNN
/// cuDNN's attention for this thread, as a context serves one thread, too. Null, after a message, if it cannot be set
/// up: the own kernels do all that it does.
inline CausalAttention* cudnn_attention() {
  thread_local const std::unique_ptr<CausalAttention> made = [] {
    try {
      return std::make_unique<CausalAttention>();
    } catch (const lazyllm::cuda_error& error) {
      std::cerr << "cuDNN's attention is left out: " << error.what() << '\n';
      return std::unique_ptr<CausalAttention>();
    }
  }();
  return made.get();
}

/// Enqueues the attention of a plan of whole prompts by cuDNN, on whose instructions for Hopper the own kernels have no
/// claim. Returns false for other plans, and where cuDNN has no kernel.
template <class T>
bool attention_of_prompts(lazyllm::cuda::Context& context, const DevicePlan<T>& plan, Index layer,
                          RowsView<const T> queries, RowsView<T> out) {
  constexpr Index min_rows = 256;  // fewer do not fill the device
  const bool long_prompts = std::ranges::all_of(
      plan.prompts(), [](const typename DevicePlan<T>::Prompt& prompt) { return prompt.rows >= min_rows; });
  if (plan.prompts().empty() || !long_prompts || std::getenv("LLAMA_OWN_ATTENTION") != nullptr) return false;
  CausalAttention* const cudnn = cudnn_attention();
  if (cudnn == nullptr) return false;
  const AttentionShape& shape = plan.shape();
  for (const auto& prompt : plan.prompts()) {
    const CausalProblem problem{.type = std::is_same_v<T, __half> ? CUDA_R_16F : CUDA_R_16BF,
                                .rows = prompt.rows,
                                .heads = shape.heads,
                                .kv_heads = shape.kv_heads,
                                .head_dim = shape.head_dim,
                                .query_stride = queries.stride,
                                .out_stride = out.stride,
                                .key_stride = prompt.cache.position_stride,
                                .kv_head_stride = prompt.cache.head_stride,
                                .scale = shape.scale};
    const Index first = layer * prompt.cache.layer_stride;
    const auto workspace = [&](Index bytes) { return context.workspace(bytes); };
    if (!cudnn->run(context.stream(), workspace, problem, queries.row(prompt.first_row), prompt.cache.keys + first,
                    prompt.cache.values + first, out.row(prompt.first_row))) {
      return false;
    }
  }
  return true;
}
#endif

template <class T>
void attention(lazyllm::cuda::Context& context, const DevicePlan<T>& plan, Index layer, RowsView<const T> queries,
               RowsView<T> out) {
  const AttentionShape& shape = plan.shape();
  const Index width = shape.heads * shape.head_dim;
  if (queries.rows != plan.query_rows() || queries.width != width || out.rows != queries.rows || out.width != width)
    fail("attention: queries [", queries.rows, " x ", queries.width, "] and out [", out.rows, " x ", out.width,
         "], allowed are [", plan.query_rows(), " x ", width, "]");
  if (shape.head_dim > kernels::widest_head)
    fail("attention: head_dim ", shape.head_dim, " is out of range 2 to ", kernels::widest_head);

  [[maybe_unused]] const bool tensor = plan.aligned() && plan.keys_numbered() &&
                                       kernels::by_16_bytes<T>({queries.data, out.data}, queries.stride, out.stride);
#ifdef LLAMA_HAS_CUDNN
  if constexpr (!std::is_same_v<T, float>) {
    if (tensor && attention_of_prompts(context, plan, layer, queries, out)) return;
  }
#endif

  struct Pass {
    const typename DevicePlan<T>::Tiles* tiles;
    Index queries;
    Index values = 0;
    Index sums = 0;
  };
  std::array<Pass, 2> passes{Pass{&plan.many(), DevicePlan<T>::many_queries},
                             Pass{&plan.few(), DevicePlan<T>::few_queries}};
  kernels::Layout layout;
  for (Pass& pass : passes) {
    const Index results = pass.tiles->part_count * shape.kv_heads * pass.queries;
    pass.values = layout.add<float>(results * shape.head_dim);
    pass.sums = layout.add<kernels::PartSums>(results);
  }
  std::byte* const memory = layout.bytes() == 0 ? nullptr : context.workspace(layout.bytes());

  for (const Pass& pass : passes) {
    const auto& tiles = *pass.tiles;
    if (tiles.tile_count == 0) continue;
    const kernels::AttentionProblem<T> problem{.tiles = tiles.tiles,
                                               .joins = tiles.joins,
                                               .tile_count = static_cast<int>(tiles.tile_count),
                                               .join_count = static_cast<int>(tiles.join_count),
                                               .tile_queries = static_cast<int>(pass.queries),
                                               .extents = plan.extents(),
                                               .caches = plan.caches(),
                                               .keys = plan.keys(),
                                               .limits = plan.key_limits(),
                                               .layer = layer,
                                               .group = static_cast<int>(shape.heads / shape.kv_heads),
                                               .kv_heads = static_cast<int>(shape.kv_heads),
                                               .head_dim = static_cast<int>(shape.head_dim),
                                               .scale = shape.scale * std::numbers::log2e_v<float>,
                                               .queries = queries,
                                               .out = out,
                                               .part_values = kernels::at<float>(memory, pass.values),
                                               .part_sums = kernels::at<kernels::PartSums>(memory, pass.sums)};
    bool done = false;
    if constexpr (!std::is_same_v<T, float>) {
      if (tensor) {
        done = pass.queries == DevicePlan<T>::many_queries
                   ? kernels::launch_tensor<kernels::ManyQueries>(context, problem)
                   : kernels::launch_tensor<kernels::FewQueries>(context, problem);
      }
    }
    if (!done) kernels::launch_plain(context, problem);
    if (tiles.join_count > 0) kernels::launch_join(context, problem);
  }
}

}  // namespace llama
