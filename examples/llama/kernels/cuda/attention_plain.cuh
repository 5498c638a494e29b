#pragma once

#include "examples/llama/kernels/cuda/attention_problem.cuh"
#include "examples/llama/kernels/cuda/block.cuh"
#include "examples/llama/kernels/cuda/elements.cuh"
#include "examples/llama/kernels/cuda/launch.cuh"

namespace llama::kernels {

inline constexpr int plain_warps = 4;
inline constexpr int widest_head = 256;
inline constexpr int own = widest_head / 32;  // elements of a lane: lane, lane + 32, ...

/// One block for each query of a tile, each warp with every fourth key, the lanes across the elements.
template <class T>
__global__ void __launch_bounds__(32 * plain_warps) attend_query(const AttentionProblem<T> problem) {
  __shared__ float results[plain_warps][widest_head];
  __shared__ PartSums sums[plain_warps];
  const int block = static_cast<int>(blockIdx.x);
  const int kv_head = block % problem.kv_heads;
  const auto tile = problem.tiles[block / problem.kv_heads];
  const auto extent = problem.extents[tile.sequence];
  const int query = tile.first_query + static_cast<int>(blockIdx.y);
  if (query >= extent.rows * problem.group) return;
  const KvView<T> cache = problem.caches[tile.sequence];
  const Index head_at = problem.layer * cache.layer_stride + kv_head * cache.head_stride;
  const int limit = problem.limits[problem.query_row(extent, query)];
  const int last = limit < tile.last_key ? limit : tile.last_key;
  const int width = problem.head_dim;

  float factors[own];
  float result[own] = {};
  const T* const from = problem.query_at(extent, kv_head, query);
#pragma unroll
  for (int i = 0; i < own; ++i) factors[i] = lane() + 32 * i < width ? widen(from[lane() + 32 * i]) : 0;
  float highest = -INFINITY;
  float sum = 0;
  for (int key = tile.first_key + warp(); key < last; key += plain_warps) {
    const Index at = head_at + problem.key_offset(extent, cache, key);
    float score = 0;
#pragma unroll
    for (int i = 0; i < own; ++i) {
      if (lane() + 32 * i < width) score += factors[i] * widen(cache.keys[at + lane() + 32 * i]);
    }
    score = lanes_sum(score) * problem.scale;
    const float most = fmaxf(highest, score);
    const float correction = exp2f(highest - most);
    const float weight = exp2f(score - most);
    highest = most;
    sum = sum * correction + weight;
#pragma unroll
    for (int i = 0; i < own; ++i) {
      if (lane() + 32 * i < width) {
        result[i] = result[i] * correction + weight * widen(cache.values[at + lane() + 32 * i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < own; ++i) results[warp()][lane() + 32 * i] = result[i];
  if (lane() == 0) sums[warp()] = {highest, sum};
  __syncthreads();
  float most = -INFINITY;
  for (int w = 0; w < plain_warps; ++w) most = fmaxf(most, sums[w].highest);
  float factor[plain_warps];
  float total = 0;
  for (int w = 0; w < plain_warps; ++w) {
    factor[w] = sums[w].sum == 0 ? 0 : exp2f(sums[w].highest - most);
    total += sums[w].sum * factor[w];
  }
  const Index place = tile.part < 0 ? 0 : problem.part_at(tile.part, kv_head, static_cast<int>(blockIdx.y));
  for (int i = thread(); i < width; i += 32 * plain_warps) {
    float value = 0;
    for (int w = 0; w < plain_warps; ++w) value += results[w][i] * factor[w];
    if (tile.part < 0) {
      problem.out_at(extent, kv_head, query)[i] = round_to<T>(value / total);
    } else {
      problem.part_values[place * width + i] = value;
    }
  }
  // In units of the tensor-core kernel: before scaling.
  if (tile.part >= 0 && thread() == 0) problem.part_sums[place] = {most / problem.scale, total};
}

/// One warp for each query of a cut tile: puts its parts together.
template <class T>
__global__ void __launch_bounds__(32) join_parts(const AttentionProblem<T> problem) {
  const int block = static_cast<int>(blockIdx.x);
  const int kv_head = block % problem.kv_heads;
  const auto join = problem.joins[block / problem.kv_heads];
  const auto extent = problem.extents[join.sequence];
  const int row = static_cast<int>(blockIdx.y);
  const int query = join.first_query + row;
  if (query >= extent.rows * problem.group) return;
  float most = -INFINITY;
  for (int p = lane(); p < join.parts; p += 32) {
    most = fmaxf(most, problem.part_sums[problem.part_at(join.part + p, kv_head, row)].highest);
  }
  most = warp_max(most);
  // A part of which the query sees nothing has weight 0.
  const auto factor = [&](const PartSums& part) {
    return part.sum == 0 ? 0.0F : exp2f((part.highest - most) * problem.scale);
  };
  float total = 0;
  for (int p = lane(); p < join.parts; p += 32) {
    const PartSums part = problem.part_sums[problem.part_at(join.part + p, kv_head, row)];
    total += part.sum * factor(part);
  }
  total = lanes_sum(total);
  T* const out = problem.out_at(extent, kv_head, query);
  float result[own] = {};
  for (int p = 0; p < join.parts; ++p) {
    const Index place = problem.part_at(join.part + p, kv_head, row);
    const float weight = factor(problem.part_sums[place]);
    const float* const values = problem.part_values + place * problem.head_dim;
#pragma unroll
    for (int i = 0; i < own; ++i) {
      if (lane() + 32 * i < problem.head_dim) result[i] += values[lane() + 32 * i] * weight;
    }
  }
#pragma unroll
  for (int i = 0; i < own; ++i) {
    if (lane() + 32 * i < problem.head_dim) out[lane() + 32 * i] = round_to<T>(result[i] / total);
  }
}

template <class T>
void launch_plain(lazyllm::cuda::Context& context, const AttentionProblem<T>& problem) {
  launch(
      context,
      dim3(static_cast<unsigned>(problem.tile_count * problem.kv_heads), static_cast<unsigned>(problem.tile_queries)),
      32 * plain_warps, attend_query<T>, problem);
}

template <class T>
void launch_join(lazyllm::cuda::Context& context, const AttentionProblem<T>& problem) {
  launch(
      context,
      dim3(static_cast<unsigned>(problem.join_count * problem.kv_heads), static_cast<unsigned>(problem.tile_queries)),
      32, join_parts<T>, problem);
}

}  // namespace llama::kernels
