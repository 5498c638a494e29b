#include "examples/llama/kernels/cpu/few_rows_attention.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "examples/llama/kernels/cpu/attention_task.hpp"

// Keys lie across the lanes for the scores, head elements for the values. A block of keys is brought into the layout of
// the instruction that multiplies pairs of bfloat16 once, and used by all queries: the rows and the heads that share
// the key/value head. "Query" number row * group + head, as in attention.cpp.
//
// Chunks of keys are separate work, each with a softmax of its own. Who finishes the last chunk of a head joins them,
// in the order of the chunks, so that no thread waits for another before the end.

namespace llama {

#ifdef __x86_64__
#define LAZYLLM_PAIRS __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")))

namespace {

using Bfloat16 = Eigen::bfloat16;

constexpr Index block_keys = 64;
constexpr Index chunk_keys = 256;
constexpr int lanes = 16;
constexpr int columns = 4;  ///< vectors of a tile: all keys of a block, or 64 elements of a head
constexpr int height = 6;   ///< queries of a tile

/// What one chunk of keys gives one query: the values' weighted sum, and the weights' total relative to the largest
/// score.
struct Partial {
  float* outputs;  // [head_dim]
  float& maximum;
  float& total;

  static Index floats(Index head_dim) { return head_dim + lanes; }
  Partial(float* memory, Index head_dim) : outputs(memory), maximum(memory[head_dim]), total(memory[head_dim + 1]) {}
};

/// A task with its chunks and their results.
struct Task : AttentionTask<Bfloat16> {
  Index chunks;
  float* partials;

  Partial partial(Index kv_head, Index query, Index chunk) const {
    const Index number = (kv_head * query_count() + query) * chunks + chunk;
    return {partials + number * Partial::floats(shape.head_dim), shape.head_dim};
  }
};

/// e^x for x <= 0, within 2e-7 of it.
LAZYLLM_PAIRS inline __m512 exponential(__m512 x) {
  const __m512 scaled = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));
  const __m512 whole = _mm512_roundscale_ps(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 rest = _mm512_sub_ps(scaled, whole);
  __m512 power = _mm512_set1_ps(1.5403530e-4f);  // Taylor's coefficients of 2^rest, |rest| <= 1/2
  for (const float coefficient : {1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f, 1.0f}) {
    power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(coefficient));
  }
  return _mm512_scalef_ps(power, whole);
}

/// A pair of bfloat16 in every lane.
LAZYLLM_PAIRS inline __m512bh broadcast(const void* pair) {
  std::int32_t bits;
  std::memcpy(&bits, pair, sizeof(bits));
  return (__m512bh)_mm512_set1_epi32(bits);
}

LAZYLLM_PAIRS inline __m512bh load(const void* from) { return (__m512bh)_mm512_loadu_si512(from); }

/// The work of one thread on one chunk of keys of one key/value head at a time.
class Chunk {
 public:
  /// Floats of scratch memory.
  static Index scratch(Index head_dim) { return block_keys * head_dim; }

  Chunk(const Task& task, float* memory)
      : task_(task),
        head_dim_(task.shape.head_dim),
        keys_(reinterpret_cast<std::uint32_t*>(memory)),
        values_(keys_ + block_keys * head_dim_ / 2) {}

  LAZYLLM_PAIRS void run(Index kv_head, Index chunk) {
    const Index first = chunk * chunk_keys;
    const Index queries = task_.query_count();
    // Limits ascend with the rows; queries in front of this one see nothing of the chunk.
    Index begin = 0;
    while (begin < queries && task_.limit(begin) <= first) ++begin;
    const Index last = std::min<Index>(first + chunk_keys, task_.key_limits.back());
    for (Index query = begin; query < queries; ++query) {
      const Partial partial = task_.partial(kv_head, query, chunk);
      std::fill_n(partial.outputs, head_dim_, 0.0f);
      partial.maximum = -std::numeric_limits<float>::infinity();
      partial.total = 0;
    }
    for (Index key = first; key < last; key += block_keys) {
      const Index count = std::min(block_keys, last - key);
      load_keys(kv_head, key, count);
      load_values(kv_head, key, count);
      Index query = begin;
      while (query < queries && task_.limit(query) <= key) ++query;
      for (; queries - query >= height; query += height) tile<height>(kv_head, chunk, key, query);
      switch (queries - query) {
        case 5: tile<5>(kv_head, chunk, key, query); break;
        case 4: tile<4>(kv_head, chunk, key, query); break;
        case 3: tile<3>(kv_head, chunk, key, query); break;
        case 2: tile<2>(kv_head, chunk, key, query); break;
        case 1: tile<1>(kv_head, chunk, key, query); break;
        default: break;
      }
    }
  }

 private:
  /// keys_[k][i] = elements 2k and 2k + 1 of key i; zeros behind `count`.
  LAZYLLM_PAIRS void load_keys(Index kv_head, Index key, Index count) {
    for (Index i = 0; i < block_keys; i += lanes) {
      std::array<const Bfloat16*, lanes> from;
      for (Index lane = 0; lane < lanes; ++lane) {
        from[static_cast<std::size_t>(lane)] =
            i + lane < count ? task_.cache.keys + task_.offset(kv_head, key + i + lane) : nullptr;
      }
      for (Index pair = 0; pair < head_dim_ / 2; pair += lanes) {
        __m512i rows[lanes];
        for (int lane = 0; lane < lanes; ++lane) {
          const Bfloat16* const row = from[static_cast<std::size_t>(lane)];
          rows[lane] = row == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(row + 2 * pair);
        }
        transpose(rows, keys_ + pair * block_keys + i);
      }
    }
  }

  /// Column k of the 16 rows to `to + k * block_keys`.
  LAZYLLM_PAIRS static void transpose(const __m512i (&rows)[lanes], std::uint32_t* to) {
    __m512i pairs[lanes], quads[lanes];
    for (int i = 0; i < lanes; i += 2) {
      pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
      pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < lanes; i += 4) {
      quads[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
      quads[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
      quads[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
      quads[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
      // Lane block b of quads[4 j + i] holds column 4 b + i of rows 4 j to 4 j + 3.
      const __m512i even_low = _mm512_shuffle_i32x4(quads[i], quads[4 + i], 0x88);
      const __m512i odd_low = _mm512_shuffle_i32x4(quads[i], quads[4 + i], 0xdd);
      const __m512i even_high = _mm512_shuffle_i32x4(quads[8 + i], quads[12 + i], 0x88);
      const __m512i odd_high = _mm512_shuffle_i32x4(quads[8 + i], quads[12 + i], 0xdd);
      _mm512_storeu_si512(to + i * block_keys, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
      _mm512_storeu_si512(to + (4 + i) * block_keys, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
      _mm512_storeu_si512(to + (8 + i) * block_keys, _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
      _mm512_storeu_si512(to + (12 + i) * block_keys, _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
    }
  }

  /// values_[i][k] = element k of the values of keys 2i and 2i + 1; zeros behind `count`.
  LAZYLLM_PAIRS void load_values(Index kv_head, Index key, Index count) {
    std::uint16_t order[2 * lanes];
    for (int i = 0; i < lanes; ++i) {
      order[2 * i] = static_cast<std::uint16_t>(i);
      order[2 * i + 1] = static_cast<std::uint16_t>(i + 2 * lanes);
    }
    const __m512i low = _mm512_loadu_si512(order);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(lanes));
    for (Index i = 0; i < block_keys; i += 2) {
      const Bfloat16* const even = i < count ? task_.cache.values + task_.offset(kv_head, key + i) : nullptr;
      const Bfloat16* const odd = i + 1 < count ? task_.cache.values + task_.offset(kv_head, key + i + 1) : nullptr;
      std::uint32_t* const to = values_ + i / 2 * head_dim_;
      for (Index k = 0; k < head_dim_; k += 2 * lanes) {
        const __m512i a = even == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(even + k);
        const __m512i b = odd == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(odd + k);
        _mm512_storeu_si512(to + k, _mm512_permutex2var_epi16(a, low, b));
        _mm512_storeu_si512(to + k + lanes, _mm512_permutex2var_epi16(a, high, b));
      }
    }
  }

  /// Adds the block that begins at `key` to the partial results of queries `query` to `query + rows - 1`. The first of
  /// them sees its first key.
  template <int rows>
  LAZYLLM_PAIRS void tile(Index kv_head, Index chunk, Index key, Index query) {
    const Bfloat16* from[rows];
    for (int q = 0; q < rows; ++q) from[q] = task_.query(kv_head, query + q);
    __m512 sum[rows][columns];
    for (int q = 0; q < rows; ++q) {
      for (int c = 0; c < columns; ++c) sum[q][c] = _mm512_setzero_ps();
    }
    for (Index k = 0; k < head_dim_ / 2; ++k) {
      __m512bh line[columns];
      for (int c = 0; c < columns; ++c) line[c] = load(keys_ + k * block_keys + c * lanes);
      for (int q = 0; q < rows; ++q) {
        const __m512bh pair = broadcast(from[q] + 2 * k);
        for (int c = 0; c < columns; ++c) sum[q][c] = _mm512_dpbf16_ps(sum[q][c], pair, line[c]);
      }
    }
    alignas(64) Bfloat16 weights[rows][block_keys];
    float corrections[rows];
    for (int q = 0; q < rows; ++q) {
      corrections[q] =
          weigh(sum[q], task_.limit(query + q) - key, task_.partial(kv_head, query + q, chunk), weights[q]);
    }
    for (Index column = 0; column < head_dim_; column += columns * lanes) {
      for (int q = 0; q < rows; ++q) {
        const float* const outputs = task_.partial(kv_head, query + q, chunk).outputs + column;
        for (int c = 0; c < columns; ++c) {
          sum[q][c] = _mm512_mul_ps(_mm512_loadu_ps(outputs + c * lanes), _mm512_set1_ps(corrections[q]));
        }
      }
      for (Index i = 0; i < block_keys / 2; ++i) {
        __m512bh line[columns];
        for (int c = 0; c < columns; ++c) line[c] = load(values_ + i * head_dim_ + column + c * lanes);
        for (int q = 0; q < rows; ++q) {
          const __m512bh pair = broadcast(weights[q] + 2 * i);
          for (int c = 0; c < columns; ++c) sum[q][c] = _mm512_dpbf16_ps(sum[q][c], pair, line[c]);
        }
      }
      for (int q = 0; q < rows; ++q) {
        float* const outputs = task_.partial(kv_head, query + q, chunk).outputs + column;
        for (int c = 0; c < columns; ++c) _mm512_storeu_ps(outputs + c * lanes, sum[q][c]);
      }
    }
  }

  /// Scores to weights, exactly 0 behind the first `visible` keys, of which there is one at least. Returns the
  /// correction of what the query has summed up so far.
  LAZYLLM_PAIRS float weigh(const __m512 (&scores)[columns], Index visible, Partial partial, Bfloat16* weights) const {
    const auto seen = visible >= block_keys ? ~std::uint64_t{0} : (std::uint64_t{1} << visible) - 1;
    const auto mask = [seen](int c) { return static_cast<__mmask16>(seen >> (c * lanes)); };
    const __m512 nothing = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    __m512 highest = _mm512_set1_ps(partial.maximum);
    for (int c = 0; c < columns; ++c) highest = _mm512_max_ps(highest, _mm512_mask_mov_ps(nothing, mask(c), scores[c]));
    const float maximum = _mm512_reduce_max_ps(highest);
    const __m512 scale = _mm512_set1_ps(task_.shape.scale);
    __m512 weight[columns];
    for (int c = 0; c < columns; ++c) {
      const __m512 below = _mm512_mul_ps(_mm512_sub_ps(scores[c], _mm512_set1_ps(maximum)), scale);
      weight[c] = _mm512_maskz_mov_ps(mask(c), exponential(below));
    }
    for (int c = 0; c < columns; c += 2) {
      _mm512_storeu_si512(weights + c * lanes, (__m512i)_mm512_cvtne2ps_pbh(weight[c + 1], weight[c]));
    }
    const float total =
        _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(weight[0], weight[1]), _mm512_add_ps(weight[2], weight[3])));
    const float correction = partial.maximum == maximum ? 1 : std::exp((partial.maximum - maximum) * task_.shape.scale);
    partial.maximum = maximum;
    partial.total = partial.total * correction + total;
    return correction;
  }

  const Task& task_;
  Index head_dim_;
  std::uint32_t* keys_;    // [head_dim / 2 x block_keys] pairs
  std::uint32_t* values_;  // [block_keys / 2 x head_dim] pairs
};

void join(const Task& task, Index kv_head, Index query) {
  using Line = Eigen::Map<Eigen::ArrayXf>;
  join_chunks<Line>(task, chunk_keys, kv_head, query, [&](Index chunk) { return task.partial(kv_head, query, chunk); });
}

void run(lazyllm::cpu::Context& context, Task& task) {
  const int threads = context.threads();
  const Index head_dim = task.shape.head_dim, heads = task.shape.kv_heads, queries = task.query_count();
  const Index partials = heads * queries * task.chunks * Partial::floats(head_dim);
  float* const memory = context.scratch(partials + threads * Chunk::scratch(head_dim)).data();
  task.partials = memory;
  std::unique_ptr<std::atomic<Index>[]> left(new std::atomic<Index>[static_cast<std::size_t>(heads)]);
  for (Index head = 0; head < heads; ++head) left[static_cast<std::size_t>(head)] = task.chunks;
  std::atomic<Index> thread_count = 0;
#pragma omp parallel num_threads(threads)
  {
    Chunk work(task, memory + partials + thread_count++ * Chunk::scratch(head_dim));
#pragma omp for schedule(dynamic) nowait
    for (Index i = 0; i < heads * task.chunks; ++i) {
      const Index head = i / task.chunks;
      work.run(head, i % task.chunks);
      if (--left[static_cast<std::size_t>(head)] == 0) {
        for (Index query = 0; query < queries; ++query) join(task, head, query);
      }
    }
  }
}

}  // namespace

bool has_few_rows_attention(const AttentionShape& shape) {
  static const bool pairs = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return pairs && shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0 && shape.head_dim > 0 &&
         shape.head_dim % (columns * lanes) == 0;
}

void few_rows_attention(lazyllm::cpu::Context& context, const AttentionShape& shape, const KeyValues<Bfloat16>& cache,
                        Positions keys, Positions key_limits, RowsView<const Bfloat16> queries,
                        RowsView<Bfloat16> out) {
  if (!has_few_rows_attention(shape))
    fail("few_rows_attention: ", shape.heads, " heads, ", shape.kv_heads, " of them key/value heads, of ",
         shape.head_dim, ": this processor has no kernel for them");
  if (queries.rows == 0) return;
  Task task{{shape, queries, cache, keys, key_limits, out}, 0, nullptr};
  check_rows("few_rows_attention", task);
  task.chunks = (key_limits.back() - 1) / chunk_keys + 1;
  run(context, task);
}

#else

bool has_few_rows_attention(const AttentionShape&) { return false; }

void few_rows_attention(lazyllm::cpu::Context&, const AttentionShape&, const KeyValues<Eigen::bfloat16>&, Positions,
                        Positions, RowsView<const Eigen::bfloat16>, RowsView<Eigen::bfloat16>) {
  fail("few_rows_attention: this processor has no kernel for it");
}

#endif

}  // namespace llama
