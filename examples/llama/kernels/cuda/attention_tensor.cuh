#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "examples/llama/kernels/cuda/attention_problem.cuh"
#include "examples/llama/kernels/cuda/block.cuh"
#include "examples/llama/kernels/cuda/elements.cuh"
#include "examples/llama/kernels/cuda/launch.cuh"
#include "examples/llama/kernels/cuda/mma.cuh"

namespace llama::kernels {

/// How the warps of a block share a tile: `query_warps` times `key_warps`, each with `fragments` times 16 queries.
/// Every matrix load of K and V serves all `fragments`: with one, shared memory would be the limit.
template <int query_warps_, int key_warps_, int fragments_, int narrow_blocks, int wide_blocks>
struct TileShape {
  static constexpr int query_warps = query_warps_;
  static constexpr int key_warps = key_warps_;
  static constexpr int fragments = fragments_;
  static constexpr int threads = 32 * query_warps * key_warps;
  static constexpr int queries = 16 * query_warps * fragments;
  static constexpr int keys = 64;  // at once

  /// Blocks at once on a processor: heads of up to 64 elements leave registers for more.
  static constexpr int blocks(int head_dim) { return head_dim <= 64 ? narrow_blocks : wide_blocks; }
};

/// Prefill: each warp has queries of its own and sees all keys.
using ManyQueries = TileShape<4, 1, 2, 3, 2>;
/// Decode: the warps share the queries and split the keys, so that much of the cache is in flight.
using FewQueries = TileShape<1, 4, 1, 4, 4>;

/// What a block works on.
template <class T>
struct TileWork {
  typename DevicePlan<T>::Tile tile;
  typename DevicePlan<T>::Extent extent;
  KvView<T> cache;
  const T* keys;    // of layer and head
  const T* values;  // of layer and head
  int kv_head;
  int queries;      // of the sequence and head
  int all_visible;  // keys up to here are seen by all queries of the tile
};

/// The shared memory of a block.
template <class T, class Shape, int width>
struct TileMemory {
  static constexpr int chunks = width / 8;  // of 16 bytes, in a row
  static constexpr int padded = width + 8;  // floats of a row of results: no two rows of a store in the same banks
  static constexpr int row_bytes = 2 * width;
  static constexpr int keys_at = Shape::queries * row_bytes;
  static constexpr int values_at = keys_at + Shape::keys * row_bytes;
  static constexpr int inputs = values_at + Shape::keys * row_bytes;
  static constexpr int results = 4 * Shape::key_warps * Shape::queries * padded;
  static constexpr int places_at = inputs > results ? inputs : results;
  static constexpr int sums_at = places_at + 3 * Shape::keys * 4;
  static constexpr int work_at = sums_at + Shape::key_warps * Shape::queries * 8;
  static constexpr int bytes = work_at + static_cast<int>(sizeof(TileWork<T>));

  /// What a row's chunk numbers are combined with, so that the eight rows of a matrix lie in different banks.
  __device__ static int twist(int row) { return chunks % 8 == 0 ? row % 8 : row / 2 % 4; }
  __device__ static std::uint32_t chunk_at(int row, int twisted_chunk) {
    return static_cast<std::uint32_t>(16 * (row * chunks + twisted_chunk));
  }
};

__device__ inline std::uint32_t pair_bits(float low, float high, __half) {
  const __half2 pair = __floats2half2_rn(low, high);
  std::uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}
__device__ inline std::uint32_t pair_bits(float low, float high, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

/// What to subtract from scores: their maximum, or 0 where nothing is visible.
__device__ inline float finite_or_zero(float highest) { return highest == -INFINITY ? 0 : highest; }

/// Softmax of one tile with the running maximum of FlashAttention. While the scores are computed, V is on its way;
/// while V is used, the next K.
template <class T, int width, class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks(width)) attend_tile(const AttentionProblem<T> problem) {
  using Memory = TileMemory<T, Shape, width>;
  constexpr int fragments = Shape::fragments;
  constexpr int warp_keys = Shape::keys / Shape::key_warps;
  constexpr int score_tiles = warp_keys / 8;
  constexpr int value_tiles = width / 8;
  constexpr int copies = Shape::keys * Memory::chunks / Shape::threads;  // of a thread, in a step

  std::byte* const shared = shared_memory();
  const std::uint32_t shared_queries = shared_address(shared);
  const std::uint32_t shared_keys = shared_queries + Memory::keys_at;
  const std::uint32_t shared_values = shared_queries + Memory::values_at;
  auto* const places = reinterpret_cast<std::uint32_t*>(shared + Memory::places_at);

  // In shared memory, because the fragments leave few registers.
  auto& work = *reinterpret_cast<TileWork<T>*>(shared + Memory::work_at);
  if (thread() == 0) {
    const int block = static_cast<int>(blockIdx.x);
    work.kv_head = block % problem.kv_heads;
    work.tile = problem.tiles[block / problem.kv_heads];
    work.extent = problem.extents[work.tile.sequence];
    work.cache = problem.caches[work.tile.sequence];
    const Index head_at = problem.layer * work.cache.layer_stride + work.kv_head * work.cache.head_stride;
    work.keys = work.cache.keys + head_at;
    work.values = work.cache.values + head_at;
    work.queries = work.extent.rows * problem.group;
    // Limits ascend, so all queries see what the first one does.
    const int first_limit = problem.limits[problem.query_row(work.extent, work.tile.first_query)];
    work.all_visible = first_limit < work.tile.last_key ? first_limit : work.tile.last_key;
  }
  __syncthreads();

  // Where the rows of a step are, in chunks from the head's first, in one of three slots: found two steps ahead, so
  // that no copy waits for the lists.
  constexpr std::uint32_t no_row = 0xffffffffU;
  const auto find_place = [&](int step) {
    const int key = work.tile.first_key + step * Shape::keys + thread();
    if (thread() >= Shape::keys || key >= work.tile.last_key) return no_row;
    return static_cast<std::uint32_t>(problem.key_offset(work.extent, work.cache, key) / 8);
  };
  const auto keep_place = [&](int step, std::uint32_t place) {
    if (thread() < Shape::keys) places[step % 3 * Shape::keys + thread()] = place;
  };
  const auto copy_rows = [&](const T* from, std::uint32_t to, int step) {
    const int self = static_cast<int>(computed_here(threadIdx.x));
#pragma unroll 2  // the addresses of more at once would not fit the registers
    for (int i = 0; i < copies; ++i) {
      const int number = i * Shape::threads + self;
      const int row = number / Memory::chunks;
      const int chunk = number % Memory::chunks;
      const std::uint32_t place = places[step % 3 * Shape::keys + row];
      const bool wanted = place != no_row;
      copy_async(to + Memory::chunk_at(row, chunk ^ Memory::twist(row)), from + (Index{wanted ? place : 0} + chunk) * 8,
                 wanted);
    }
  };

  for (int number = thread(); number < Shape::queries * Memory::chunks; number += Shape::threads) {
    const int row = number / Memory::chunks;
    const int chunk = number % Memory::chunks;
    const int query = work.tile.first_query + row;
    copy_async(shared_queries + Memory::chunk_at(row, chunk ^ Memory::twist(row)),
               problem.query_at(work.extent, work.kv_head, query < work.queries ? query : 0) + chunk * 8,
               query < work.queries);
  }
  keep_place(0, find_place(0));
  keep_place(1, find_place(1));
  __syncthreads();
  copy_rows(work.keys, shared_keys, 0);

  // The first query of a thread's warp in the tile, and the first key in a step.
  const auto first_query_of = [](int number) { return number / 32 / Shape::key_warps * 16 * fragments; };
  const auto first_key_of = [](int number) { return number / 32 % Shape::key_warps * warp_keys; };

  // Of this thread's rows of the fragments.
  float highest[fragments][2];
  float sum[fragments][2];
  float result[fragments][value_tiles][4];
#pragma unroll
  for (int f = 0; f < fragments; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      highest[f][half] = -INFINITY;
      sum[f][half] = 0;
    }
#pragma unroll
    for (int n = 0; n < value_tiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) result[f][n][i] = 0;
    }
  }

  for (int step = 0; work.tile.first_key + step * Shape::keys < work.tile.last_key; ++step) {
    wait_for_copies();
    __syncthreads();  // K is there, and V is not used any more
    copy_rows(work.values, shared_values, step);
    const std::uint32_t later_place = find_place(step + 2);

    // A lane's part in the addresses of the matrix loads, by the layouts of the fragments. Found again in each step:
    // the addresses of all matrices would not fit the registers.
    const int score_thread = static_cast<int>(computed_here(threadIdx.x));
    const int score_lane = score_thread % 32;
    const std::uint32_t query_row =
        shared_queries + Memory::chunk_at(first_query_of(score_thread) + score_lane % 16, 0);
    const int query_chunk = score_lane / 16 ^ Memory::twist(score_lane % 16);
    const std::uint32_t key_row =
        shared_keys + Memory::chunk_at(first_key_of(score_thread) + score_lane / 16 * 8 + score_lane % 8, 0);
    const int key_chunk = score_lane / 8 % 2 ^ Memory::twist(score_lane % 8);
    float score[fragments][score_tiles][4] = {};
#pragma unroll 2  // the addresses of more at once would not fit the registers
    for (int k = 0; k < width / 16; ++k) {
      std::uint32_t a[fragments][4];
#pragma unroll
      for (int f = 0; f < fragments; ++f) {
        load_matrices(query_row + Memory::chunk_at(f * 16, 2 * k ^ query_chunk), a[f]);
      }
#pragma unroll
      for (int n = 0; n < score_tiles; n += 2) {
        std::uint32_t b[4];
        load_matrices(key_row + Memory::chunk_at(n * 8, 2 * k ^ key_chunk), b);
#pragma unroll
        for (int f = 0; f < fragments; ++f) {
          multiply<T>(a[f], b[0], b[1], score[f][n]);
          multiply<T>(a[f], b[2], b[3], score[f][n + 1]);
        }
      }
    }

    const int first = work.tile.first_key + step * Shape::keys;
    wait_for_copies();
    __syncthreads();  // V is there, and K is not used any more
    keep_place(step + 2, later_place);
    if (first + Shape::keys < work.tile.last_key) copy_rows(work.keys, shared_keys, step + 1);

    if (first + Shape::keys > work.all_visible) {
#pragma unroll
      for (int f = 0; f < fragments; ++f) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          // A row of no query sees all, to no effect.
          const int query = work.tile.first_query + first_query_of(thread()) + f * 16 + half * 8 + lane() / 4;
          int limit = query < work.queries ? problem.limits[problem.query_row(work.extent, query)] : work.tile.last_key;
          if (limit > work.tile.last_key) limit = work.tile.last_key;
          limit -= first + first_key_of(thread()) + lane() % 4 * 2;
#pragma unroll
          for (int n = 0; n < score_tiles; ++n) {
            if (n * 8 >= limit) score[f][n][2 * half] = -INFINITY;
            if (n * 8 + 1 >= limit) score[f][n][2 * half + 1] = -INFINITY;
          }
        }
      }
    }
#pragma unroll
    for (int f = 0; f < fragments; ++f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = highest[f][half];
#pragma unroll
        for (int n = 0; n < score_tiles; ++n) {
          most = fmaxf(most, fmaxf(score[f][n][2 * half], score[f][n][2 * half + 1]));
        }
        most = fmaxf(most, __shfl_xor_sync(whole_warp, most, 1));
        most = fmaxf(most, __shfl_xor_sync(whole_warp, most, 2));
        const float base = finite_or_zero(most) * problem.scale;
        // Scaled after the difference: 1 where the maximum stays. A fused multiply-add of the two would give the
        // rounding of `base`, of each 64 keys anew.
        const float correction = fast_exp2((highest[f][half] - finite_or_zero(most)) * problem.scale);
        highest[f][half] = most;
        sum[f][half] *= correction;
#pragma unroll
        for (int n = 0; n < score_tiles; ++n) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            score[f][n][i] = fast_exp2(score[f][n][i] * problem.scale - base);
            sum[f][half] += score[f][n][i];
          }
        }
#pragma unroll
        for (int n = 0; n < value_tiles; ++n) {
          result[f][n][2 * half] *= correction;
          result[f][n][2 * half + 1] *= correction;
        }
      }
    }

    // Two neighbouring tiles of scores are, rounded, a fragment of the left factor.
    const int value_thread = static_cast<int>(computed_here(threadIdx.x));
    const int value_lane = value_thread % 32;
    const std::uint32_t value_row = shared_values + Memory::chunk_at(first_key_of(value_thread) + value_lane % 16, 0);
    const int value_chunk = value_lane / 16 ^ Memory::twist(value_lane % 16);
#pragma unroll
    for (int k = 0; k < warp_keys / 16; ++k) {
      std::uint32_t a[fragments][4];
#pragma unroll
      for (int f = 0; f < fragments; ++f) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&from)[4] = score[f][2 * k + i / 2];
          a[f][i] = pair_bits(from[i % 2 * 2], from[i % 2 * 2 + 1], T());
        }
      }
#pragma unroll
      for (int n = 0; n < value_tiles; n += 2) {
        std::uint32_t b[4];
        load_transposed_matrices(value_row + Memory::chunk_at(k * 16, n ^ value_chunk), b);
#pragma unroll
        for (int f = 0; f < fragments; ++f) {
          multiply<T>(a[f], b[0], b[1], result[f][n]);
          multiply<T>(a[f], b[2], b[3], result[f][n + 1]);
        }
      }
    }
  }

  // Through shared memory, so that rows leave by 16 bytes, and to add up what the warps have of different keys.
  PartSums* const sums = reinterpret_cast<PartSums*>(shared + Memory::sums_at);
  float* const results = reinterpret_cast<float*>(shared);
  const int key_warp = thread() / 32 % Shape::key_warps;
#pragma unroll
  for (int f = 0; f < fragments; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[f][half] = lanes_sum(sum[f][half], 4);
      const int row = first_query_of(thread()) + f * 16 + half * 8 + lane() / 4;
      if (lane() % 4 == 0) sums[key_warp * Shape::queries + row] = {highest[f][half], sum[f][half]};
    }
  }
  wait_for_copies();  // even if there was no step
  __syncthreads();
#pragma unroll
  for (int f = 0; f < fragments; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_query_of(thread()) + f * 16 + half * 8 + lane() / 4;
      float* const to = results + (key_warp * Shape::queries + row) * Memory::padded + lane() % 4 * 2;
#pragma unroll
      for (int n = 0; n < value_tiles; ++n) {
        store(Pack<float, 2>{result[f][n][2 * half], result[f][n][2 * half + 1]}, to + n * 8);
      }
    }
  }
  __syncthreads();
  for (int number = thread(); number < Shape::queries * Memory::chunks; number += Shape::threads) {
    const int row = number / Memory::chunks;
    const int chunk = number % Memory::chunks;
    const int query = work.tile.first_query + row;
    if (query >= work.queries) break;
    float most = -INFINITY;
    for (int w = 0; w < Shape::key_warps; ++w) most = fmaxf(most, sums[w * Shape::queries + row].highest);
    float total = 0;
    float value[8] = {};
#pragma unroll
    for (int w = 0; w < Shape::key_warps; ++w) {
      const PartSums part = sums[w * Shape::queries + row];
      const float factor = fast_exp2((part.highest - finite_or_zero(most)) * problem.scale);
      total += part.sum * factor;
      float own[8];
      load_floats(results + (w * Shape::queries + row) * Memory::padded + chunk * 8, own);
#pragma unroll
      for (int i = 0; i < 8; ++i) value[i] += own[i] * factor;
    }
    if (work.tile.part < 0) {
      Pack<T, 8> pack;
#pragma unroll
      for (int i = 0; i < 8; ++i) pack.values[i] = round_to<T>(value[i] / total);
      store(pack, problem.out_at(work.extent, work.kv_head, query) + chunk * 8);
    } else {
      const Index place = problem.part_at(work.tile.part, work.kv_head, row);
      float* const to = problem.part_values + place * width + chunk * 8;
      store(Pack<float, 4>{value[0], value[1], value[2], value[3]}, to);
      store(Pack<float, 4>{value[4], value[5], value[6], value[7]}, to + 4);
      if (chunk == 0) problem.part_sums[place] = {most, total};
    }
  }
}

template <int width, class Shape, class T>
void launch_tiles(lazyllm::cuda::Context& context, const AttentionProblem<T>& problem) {
  launch_shared(context, dim3(static_cast<unsigned>(problem.tile_count * problem.kv_heads)), Shape::threads,
                TileMemory<T, Shape, width>::bytes, attend_tile<T, width, Shape>, problem);
}

/// Launches the tensor-core kernel for 16-bit types if there is one for the head dimension.
template <class Shape, class T>
bool launch_tensor(lazyllm::cuda::Context& context, const AttentionProblem<T>& problem) {
  switch (problem.head_dim) {
    case 32: launch_tiles<32, Shape>(context, problem); return true;
    case 64: launch_tiles<64, Shape>(context, problem); return true;
    case 96: launch_tiles<96, Shape>(context, problem); return true;
    case 128: launch_tiles<128, Shape>(context, problem); return true;
    default: return false;
  }
}

}  // namespace llama::kernels
