#include "examples/llama/kernels/cuda/rotary.hpp"

#include <algorithm>

#include "examples/llama/kernels/cuda/block.cuh"
#include "examples/llama/kernels/cuda/cache_rows.cuh"
#include "examples/llama/kernels/cuda/elements.cuh"
#include "examples/llama/kernels/cuda/launch.cuh"
#include "examples/llama/library.hpp"

namespace llama {
namespace kernels {

constexpr int max_threads = 256;

/// Two packs of a head that hold `count` whole pairs, and where they begin.
struct PairPlaces {
  int first;
  int second;

  __device__ PairPlaces(const RotaryView& table, int pair, int count)
      : first(table.interleaved ? 2 * pair : pair),
        second(table.interleaved ? first + count : pair + static_cast<int>(table.head_dim) / 2) {}
};

template <class T, int count>
__device__ void rotate_pairs(const RotaryView& table, Position position, int pair, Pack<T, count>& first,
                             Pack<T, count>& second) {
  const float* const angles = table.angles + position * table.head_dim + pair;
  float cosines[count];
  float sines[count];
  load_floats(angles, cosines);
  load_floats(angles + table.head_dim / 2, sines);
  const auto turn = [&](T& a, T& b, int i) {
    const float x = widen(a);
    const float y = widen(b);
    a = round_to<T>(x * cosines[i] - y * sines[i]);
    b = round_to<T>(x * sines[i] + y * cosines[i]);
  };
  if (!table.interleaved) {
#pragma unroll
    for (int i = 0; i < count; ++i) turn(first.values[i], second.values[i], i);
  } else if constexpr (count == 1) {
    turn(first.values[0], second.values[0], 0);
  } else {
#pragma unroll
    for (int i = 0; i < count / 2; ++i) {
      turn(first.values[2 * i], first.values[2 * i + 1], i);
      turn(second.values[2 * i], second.values[2 * i + 1], count / 2 + i);
    }
  }
}

/// One thread for `count` pairs of a row's head.
template <int count, class T>
__global__ void __launch_bounds__(max_threads)
    rotate_row(const RotaryView table, const Position* positions, const RowsView<T> rows) {
  const int width = static_cast<int>(table.head_dim);
  const int pair = (static_cast<int>(blockIdx.y) * threads() + thread()) * count;
  if (2 * pair >= rows.width) return;
  T* const head = rows.row(blockIdx.x) + pair / (width / 2) * width;
  const int place = pair % (width / 2);
  const PairPlaces at(table, place, count);
  auto first = load<count>(head + at.first);
  auto second = load<count>(head + at.second);
  rotate_pairs(table, positions[blockIdx.x], place, first, second);
  store(first, head + at.first);
  store(second, head + at.second);
}

/// The same for K, on its way to the cache, and V beside it.
template <int count, class T>
__global__ void __launch_bounds__(max_threads)
    write_row(const RotaryView table, const Position* positions, const std::int32_t* sequences, const KvView<T>* caches,
              Index layer, int kv_heads, const RowsView<const T> key_values) {
  const int width = static_cast<int>(table.head_dim);
  const int pair = (static_cast<int>(blockIdx.y) * threads() + thread()) * count;
  const int head = pair / (width / 2);
  if (head >= kv_heads) return;
  const int place = pair % (width / 2);
  const PairPlaces at(table, place, count);
  const T* const key = key_values.row(blockIdx.x) + head * width;
  const T* const value = key + kv_heads * width;
  const Position position = positions[blockIdx.x];
  const KvView<T> cache = caches[sequences[blockIdx.x]];
  const Index offset = layer * cache.layer_stride + head * cache.head_stride + offset_of(cache, position);
  auto first = load<count>(key + at.first);
  auto second = load<count>(key + at.second);
  rotate_pairs(table, position, place, first, second);
  store(first, cache.keys + offset + at.first);
  store(second, cache.keys + offset + at.second);
  store(load<count>(value + at.first), cache.values + offset + at.first);
  store(load<count>(value + at.second), cache.values + offset + at.second);
}

}  // namespace kernels

namespace {

template <class T>
void check(const char* what, const DevicePlan<T>& plan, const RotaryView& table, Index rows, Index wanted_rows,
           Index width, Index wanted_width) {
  if (rows != wanted_rows || width != wanted_width || table.head_dim != plan.shape().head_dim)
    fail(what, ": rows [", rows, " x ", width, "] with head_dim ", table.head_dim, ", allowed are [", wanted_rows,
         " x ", wanted_width, "] with head_dim ", plan.shape().head_dim);
  if (plan.tokens() > table.positions)
    fail(what, ": position ", plan.tokens() - 1, " is out of range 0 to ", table.positions - 1);
}

/// Calls `launch(blocks, threads)` for the pairs of `rows` rows of `width` elements.
template <class Launch>
void for_pairs(Index rows, Index width, Index count, const Launch& launch) {
  const Index work = width / (2 * count);
  const auto threads = static_cast<unsigned>(std::clamp<Index>((work + 31) / 32 * 32, 32, kernels::max_threads));
  launch(dim3(static_cast<unsigned>(rows), static_cast<unsigned>((work + threads - 1) / threads)), threads);
}

}  // namespace

template <class T>
void rotate(lazyllm::cuda::Context& context, const DevicePlan<T>& plan, const RotaryView& table, RowsView<T> queries) {
  const AttentionShape& shape = plan.shape();
  check("rotate", plan, table, queries.rows, plan.query_rows(), queries.width, shape.heads * shape.head_dim);
  if (queries.rows == 0) return;
  const auto run = [&](auto kernel, Index count) {
    for_pairs(queries.rows, queries.width, count, [&](dim3 blocks, unsigned threads) {
      kernels::launch(context, blocks, threads, kernel, table, plan.query_positions(), queries);
    });
  };
  constexpr int whole = kernels::whole_pack<T>;
  if (kernels::by_16_bytes<T>({queries.data, table.angles}, queries.stride, shape.head_dim / 2)) {
    run(kernels::rotate_row<whole, T>, whole);
  } else {
    run(kernels::rotate_row<1, T>, 1);
  }
}

template <class T>
void write_key_values(lazyllm::cuda::Context& context, const DevicePlan<T>& plan, Index layer, const RotaryView& table,
                      RowsView<const T> key_values) {
  const AttentionShape& shape = plan.shape();
  const Index width = shape.kv_heads * shape.head_dim;
  check("write_key_values", plan, table, key_values.rows, plan.rows(), key_values.width, 2 * width);
  if (key_values.rows == 0) return;
  const auto run = [&](auto kernel, Index count) {
    for_pairs(key_values.rows, width, count, [&](dim3 blocks, unsigned threads) {
      kernels::launch(context, blocks, threads, kernel, table, plan.positions(), plan.row_sequences(), plan.caches(),
                      layer, static_cast<int>(shape.kv_heads), key_values);
    });
  };
  constexpr int whole = kernels::whole_pack<T>;
  if (plan.aligned() &&
      kernels::by_16_bytes<T>({key_values.data, table.angles}, key_values.stride, shape.head_dim / 2)) {
    run(kernels::write_row<whole, T>, whole);
  } else {
    run(kernels::write_row<1, T>, 1);
  }
}

#define LLAMA_INSTANTIATE(T)                                                                              \
  template void rotate(lazyllm::cuda::Context&, const DevicePlan<T>&, const RotaryView&, RowsView<T>);    \
  template void write_key_values(lazyllm::cuda::Context&, const DevicePlan<T>&, Index, const RotaryView&, \
                                 RowsView<const T>);
LLAMA_INSTANTIATE(float)
LLAMA_INSTANTIATE(__half)
LLAMA_INSTANTIATE(__nv_bfloat16)
#undef LLAMA_INSTANTIATE

}  // namespace llama
