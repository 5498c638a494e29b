#include "examples/llama/kernels/cpu/few_rows_attention.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numbers>
#include <string_view>
#include <type_traits>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "examples/llama/kernels/cpu/attention_task.hpp"
#include "examples/llama/kernels/cpu/block_kernels.hpp"
#include "examples/llama/kernels/cpu/team.hpp"

// Chunks of keys are separate work, each with a softmax of its own. Who finishes the last chunk of a head joins them,
// in the order of the chunks, so that no thread waits for another before the end. A chunk's keys and values serve all
// queries: the rows and the heads that share the key/value head. "Query" number row * group + head, as in
// attention_task.hpp.

namespace llama {
namespace {

using Bfloat16 = Eigen::bfloat16;

constexpr Index chunk_keys = 256;  ///< of a chunk at most

/// The first two chunks are half as long, so that threads have even shares of a few hundred keys. Boundaries depend on
/// nothing else: a row's bits must not depend on the keys of other rows.
constexpr Index chunk_begin(Index chunk) { return chunk < 2 ? chunk * (chunk_keys / 2) : (chunk - 1) * chunk_keys; }
constexpr Index chunk_of(Index key) { return key < chunk_keys ? key / (chunk_keys / 2) : key / chunk_keys + 1; }

constexpr Index alignment = 16;  ///< floats, for Eigen

/// What one chunk of keys gives one query: the largest score as a power of 2, and the values' weighted sum and the
/// weights' total relative to it.
struct Partial {
  float* outputs;  // [width]
  float& maximum;
  float& total;
};

/// A task with its chunks and their results. Outputs are `width` wide, at least the head's elements: a multiple of
/// `alignment`, so that a row's bits do not depend on where its results lie.
template <class T>
struct Task : AttentionTask<T> {
  Index width;
  Index chunks;
  float* partials;

  /// Floats of a chunk's results.
  Index floats() const { return round_up(this->query_count() * (width + 2), alignment); }

  /// Of a chunk the outputs of all queries, then their maxima, then their totals.
  Partial partial(Index kv_head, Index query, Index chunk) const {
    const Index queries = this->query_count();
    float* const memory = partials + (kv_head * chunks + chunk) * floats();
    return {memory + query * width, memory[queries * width + query], memory[queries * (width + 1) + query]};
  }
};

/// What kernels take an element for.
template <class T>
using Bits = std::conditional_t<std::is_same_v<T, float>, float, std::uint16_t>;

/// Works on one chunk of keys of one key/value head at a time by the kernels of the processor's instruction
/// set. The elements of a head lie across the lanes. Keys and values are read where they are; of heads that are no
/// multiple of `block_step` they are copied, with zeros behind them.
template <class T>
class InPlaceChunk {
 public:
  static Index width(Index head_dim) { return round_up(head_dim, block_step); }
  /// Floats of scratch memory.
  static Index scratch(const Task<T>& task) {
    const Index copies = task.width == task.shape.head_dim ? 0 : 2 * chunk_keys * task.width;
    return task.query_count() * (task.width + chunk_keys + 1 + static_cast<Index>(sizeof(Index) / sizeof(float))) +
           copies;
  }

  InPlaceChunk(const Task<T>& task, float* memory)
      : task_(task),
        queries_(memory),
        scores_(queries_ + task.query_count() * task.width),
        visible_(reinterpret_cast<Index*>(scores_ + task.query_count() * chunk_keys)),
        correction_(reinterpret_cast<float*>(visible_ + task.query_count())),
        copies_(correction_ + task.query_count()) {}

  void run(Index kv_head, Index chunk) const {
    const Index first = chunk_begin(chunk);
    const Index count = std::min(chunk_begin(chunk + 1), Index{task_.key_limits.back()}) - first;
    // Limits ascend with the rows; queries in front of this one see nothing of the chunk.
    Index begin = 0;
    while (task_.limit(begin) <= first) ++begin;
    if (task_.width == task_.shape.head_dim) {
      attend(kv_head, chunk, begin, count, rows_of(kv_head, first, count));
    } else {
      attend(kv_head, chunk, begin, count, copies_of(kv_head, first, count));
    }
  }

 private:
  /// A chunk's keys, the last one as often as lanes need it, then its values, then what the kernels fetch behind them.
  template <class U>
  using Rows = std::array<const Bits<U>*, 2 * chunk_keys + rows_ahead>;

  /// Pointers into the cache. Behind them are those of the next keys, which this thread most likely does next.
  Rows<T> rows_of(Index kv_head, Index first, Index count) const {
    Rows<T> rows;
    auto* next = rows.data();
    const auto put = [&](const T* from, Index head, Index key) {
      *next++ = reinterpret_cast<const Bits<T>*>(from + task_.offset(head, key));
    };
    for (Index i = 0; i < round_up(count, block_step); ++i)
      put(task_.cache.keys, kv_head, first + std::min(i, count - 1));
    for (Index i = 0; i < count; ++i) put(task_.cache.values, kv_head, first + i);
    const Index keys = task_.key_limits.back();
    const bool last = first + count == keys;
    const Index head = std::min(kv_head + (last ? 1 : 0), task_.shape.kv_heads - 1);
    for (Index i = 0; i < rows_ahead; ++i) {
      put(task_.cache.keys, head, std::min((last ? 0 : first + count) + i, keys - 1));
    }
    return rows;
  }

  Rows<float> copies_of(Index kv_head, Index first, Index count) const {
    Rows<float> rows;
    auto* next = rows.data();
    for (Index i = 0; i < count; ++i) {
      const Index offset = task_.offset(kv_head, first + i);
      copy(task_.cache.keys + offset, copies_ + i * task_.width);
      copy(task_.cache.values + offset, copies_ + (chunk_keys + i) * task_.width);
    }
    for (Index i = 0; i < round_up(count, block_step); ++i) *next++ = copies_ + std::min(i, count - 1) * task_.width;
    for (Index i = 0; i < count; ++i) *next++ = copies_ + (chunk_keys + i) * task_.width;
    std::fill_n(next, rows_ahead, copies_);
    return rows;
  }

  /// A head's elements, zeros behind them.
  void copy(const T* from, float* to) const {
    widen(from, task_.shape.head_dim, to);
    std::fill(to + task_.shape.head_dim, to + task_.width, 0.0f);
  }

  /// The partial results of the queries from number `begin` on.
  template <class Element, std::size_t size>
  void attend(Index kv_head, Index chunk, Index begin, Index count,
              const std::array<const Element*, size>& rows) const {
    const RowKernels<Element>& kernels = row_kernels<Element>(block_kernels());
    const Index queries = task_.query_count() - begin, padded = round_up(count, block_step);
    for (Index i = 0; i < queries; ++i) {
      copy(task_.query(kv_head, begin + i), queries_ + i * task_.width);
      visible_[i] = std::min(count, task_.limit(begin + i) - chunk_begin(chunk));
      const Partial partial = task_.partial(kv_head, begin + i, chunk);
      partial.maximum = -std::numeric_limits<float>::infinity();
      partial.total = 0;
    }
    const Partial partial = task_.partial(kv_head, begin, chunk);
    kernels.score(queries, task_.width, padded, queries_, rows.data(), scores_, chunk_keys);
    block_kernels().weigh({.rows = queries,
                           .keys = chunk_keys,
                           .scores = scores_,
                           .visible = visible_,
                           .scale = task_.shape.scale * std::numbers::log2e_v<float>,
                           .maximum = &partial.maximum,
                           .total = &partial.total,
                           .correction = correction_});
    kernels.sum(queries, task_.width, count, scores_, chunk_keys, rows.data() + padded, partial.outputs);
  }

  const Task<T>& task_;
  float* queries_;  // [queries x width]
  float* scores_;   // [queries x chunk_keys]
  Index* visible_;  // [queries]
  float* correction_;
  float* copies_;  // [2 x chunk_keys x width]
};

#ifdef __x86_64__
#define LLAMA_PAIRS __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")))

constexpr Index block_keys = 64;  ///< whose scores a tile sums up at a time
constexpr int lanes = 16;
constexpr int columns = 4;  ///< vectors of a tile: all keys of a block, or 64 elements of a head
constexpr int height = 6;   ///< queries of a tile

/// e^x for x <= 0, within 2e-7 of it.
LLAMA_PAIRS inline __m512 exponential(__m512 x) {
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
LLAMA_PAIRS inline __m512bh broadcast(const void* pair) {
  std::int32_t bits;
  std::memcpy(&bits, pair, sizeof(bits));
  return (__m512bh)_mm512_set1_epi32(bits);
}

LLAMA_PAIRS inline __m512bh load(const void* from) { return (__m512bh)_mm512_loadu_si512(from); }

/// The same for many queries by the instruction that multiplies pairs of bfloat16, for heads of a multiple of 64. Keys
/// and values are copied into an order in which no sums of lanes are left.
class PairChunk {
 public:
  static Index width(Index head_dim) { return head_dim; }
  static Index scratch(const Task<Bfloat16>& task) { return chunk_keys * task.width; }

  PairChunk(const Task<Bfloat16>& task, float* memory)
      : task_(task),
        head_dim_(task.shape.head_dim),
        keys_(reinterpret_cast<std::uint32_t*>(memory)),
        values_(keys_ + chunk_keys * head_dim_ / 2) {}

  LLAMA_PAIRS void run(Index kv_head, Index chunk) {
    const Index first = chunk_begin(chunk);
    const Index queries = task_.query_count();
    const Index keys = task_.key_limits.back();
    const Index count = std::min(chunk_begin(chunk + 1), keys) - first;
    const bool last = chunk + 1 == task_.chunks;
    fetched_head_ = last ? kv_head + 1 : kv_head;
    fetched_ = last ? 0 : chunk_begin(chunk + 1);
    fetched_end_ = fetched_head_ == task_.shape.kv_heads ? 0 : std::min(chunk_begin(last ? 1 : chunk + 2), keys);
    piece_ = 0;
    load_keys(kv_head, first, count);
    load_values(kv_head, first, count);
    // Limits ascend with the rows; queries in front of this one see nothing of the chunk.
    Index query = 0;
    while (task_.limit(query) <= first) ++query;
    for (; queries - query >= height; query += height) tile<height>(kv_head, chunk, query);
    switch (queries - query) {
      case 5: tile<5>(kv_head, chunk, query); break;
      case 4: tile<4>(kv_head, chunk, query); break;
      case 3: tile<3>(kv_head, chunk, query); break;
      case 2: tile<2>(kv_head, chunk, query); break;
      case 1: tile<1>(kv_head, chunk, query); break;
      default: break;
    }
  }

 private:
  /// Fetches a little of the chunk after this one, which this thread most likely does next. No more at a time, since a
  /// processor has few reads under way.
  LLAMA_PAIRS void fetch_some() {
    if (fetched_ == fetched_end_) return;
    const Index offset = task_.offset(fetched_head_, fetched_) + piece_;
    _mm_prefetch(reinterpret_cast<const char*>(task_.cache.keys + offset), _MM_HINT_T1);
    _mm_prefetch(reinterpret_cast<const char*>(task_.cache.values + offset), _MM_HINT_T1);
    piece_ += 2 * lanes;
    if (piece_ == head_dim_) {
      piece_ = 0;
      ++fetched_;
    }
  }

  /// keys_[i / 64][k][i % 64] = elements 2k and 2k + 1 of key i. What follows `count` in its block is of no use:
  /// `weigh` leaves its scores out.
  LLAMA_PAIRS void load_keys(Index kv_head, Index key, Index count) {
    for (Index i = 0; i < count; i += lanes) {
      std::array<const Bfloat16*, lanes> from;
      for (Index lane = 0; lane < lanes; ++lane) {
        from[static_cast<std::size_t>(lane)] =
            i + lane < count ? task_.cache.keys + task_.offset(kv_head, key + i + lane) : nullptr;
      }
      std::uint32_t* const to = keys_ + i / block_keys * block_keys * head_dim_ / 2 + i % block_keys;
      for (Index pair = 0; pair < head_dim_ / 2; pair += lanes) {
        __m512i rows[lanes];
        for (int lane = 0; lane < lanes; ++lane) {
          const Bfloat16* const row = from[static_cast<std::size_t>(lane)];
          rows[lane] = row == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(row + 2 * pair);
        }
        transpose(rows, to + pair * block_keys);
      }
    }
  }

  /// Column k of the 16 rows to `to + k * block_keys`.
  LLAMA_PAIRS static void transpose(const __m512i (&rows)[lanes], std::uint32_t* to) {
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
  LLAMA_PAIRS void load_values(Index kv_head, Index key, Index count) {
    std::uint16_t order[2 * lanes];
    for (int i = 0; i < lanes; ++i) {
      order[2 * i] = static_cast<std::uint16_t>(i);
      order[2 * i + 1] = static_cast<std::uint16_t>(i + 2 * lanes);
    }
    const __m512i low = _mm512_loadu_si512(order);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(lanes));
    for (Index i = 0; i < count; i += 2) {
      const Bfloat16* const even = task_.cache.values + task_.offset(kv_head, key + i);
      const Bfloat16* const odd = i + 1 < count ? task_.cache.values + task_.offset(kv_head, key + i + 1) : nullptr;
      std::uint32_t* const to = values_ + i / 2 * head_dim_;
      for (Index k = 0; k < head_dim_; k += 2 * lanes) {
        const __m512i a = _mm512_loadu_si512(even + k);
        const __m512i b = odd == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(odd + k);
        _mm512_storeu_si512(to + k, _mm512_permutex2var_epi16(a, low, b));
        _mm512_storeu_si512(to + k + lanes, _mm512_permutex2var_epi16(a, high, b));
      }
    }
  }

  /// The partial results of queries `query` to `query + rows - 1`. The first of them sees the chunk's first key.
  template <int rows>
  LLAMA_PAIRS void tile(Index kv_head, Index chunk, Index query) {
    alignas(64) float scores[rows][chunk_keys];
    alignas(64) Bfloat16 weights[rows][chunk_keys];
    const Index first = chunk_begin(chunk);
    const Index seen = std::min(chunk_begin(chunk + 1), Index{task_.limit(query + rows - 1)}) - first;
    const Bfloat16* from[rows];
    for (int q = 0; q < rows; ++q) from[q] = task_.query(kv_head, query + q);
    for (Index key = 0; key < seen; key += block_keys) {
      const std::uint32_t* const keys = keys_ + key * head_dim_ / 2;
      __m512 sum[rows][columns];
      for (int q = 0; q < rows; ++q) {
        for (int c = 0; c < columns; ++c) sum[q][c] = _mm512_setzero_ps();
      }
      for (Index k = 0; k < head_dim_ / 2; ++k) {
        fetch_some();
        __m512bh line[columns];
        for (int c = 0; c < columns; ++c) line[c] = load(keys + k * block_keys + c * lanes);
        for (int q = 0; q < rows; ++q) {
          const __m512bh pair = broadcast(from[q] + 2 * k);
          for (int c = 0; c < columns; ++c) sum[q][c] = _mm512_dpbf16_ps(sum[q][c], pair, line[c]);
        }
      }
      for (int q = 0; q < rows; ++q) {
        for (int c = 0; c < columns; ++c) _mm512_store_ps(scores[q] + key + c * lanes, sum[q][c]);
      }
    }
    for (int q = 0; q < rows; ++q) {
      const Index visible = std::min<Index>(seen, task_.limit(query + q) - first);
      weigh(scores[q], visible, seen, task_.partial(kv_head, query + q, chunk), weights[q]);
    }
    for (Index column = 0; column < head_dim_; column += columns * lanes) {
      __m512 sum[rows][columns];
      for (int q = 0; q < rows; ++q) {
        for (int c = 0; c < columns; ++c) sum[q][c] = _mm512_setzero_ps();
      }
      for (Index i = 0; 2 * i < seen; ++i) {
        fetch_some();
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

  /// Scores to weights, exactly 0 behind the first `visible` keys, of which there is one at least, up to `seen` keys.
  LLAMA_PAIRS void weigh(float* scores, Index visible, Index seen, Partial partial, Bfloat16* weights) const {
    const __m512 nothing = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    // The next 32 keys that are visible.
    const auto mask = [visible](Index i) {
      const Index left = std::clamp<Index>(visible - i, 0, 2 * lanes);
      return static_cast<std::uint32_t>((std::uint64_t{1} << left) - 1);
    };
    __m512 highest[2] = {nothing, nothing};
    for (Index i = 0; i < visible; i += 2 * lanes) {
      const std::uint32_t seen_keys = mask(i);
      for (int c = 0; c < 2; ++c) {
        const auto lane_mask = static_cast<__mmask16>(seen_keys >> (c * lanes));
        highest[c] = _mm512_max_ps(highest[c], _mm512_mask_loadu_ps(nothing, lane_mask, scores + i + c * lanes));
      }
    }
    partial.maximum = _mm512_reduce_max_ps(_mm512_max_ps(highest[0], highest[1]));
    const __m512 maximum = _mm512_set1_ps(partial.maximum), scale = _mm512_set1_ps(task_.shape.scale);
    __m512 total[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (Index i = 0; i < seen; i += 2 * lanes) {
      const std::uint32_t seen_keys = mask(i);
      __m512 weight[2];
      for (int c = 0; c < 2; ++c) {
        const auto lane_mask = static_cast<__mmask16>(seen_keys >> (c * lanes));
        const __m512 below = _mm512_mul_ps(_mm512_sub_ps(_mm512_load_ps(scores + i + c * lanes), maximum), scale);
        weight[c] = _mm512_maskz_mov_ps(lane_mask, exponential(below));
        total[c] = _mm512_add_ps(total[c], weight[c]);
      }
      _mm512_storeu_si512(weights + i, (__m512i)_mm512_cvtne2ps_pbh(weight[1], weight[0]));
    }
    partial.maximum *= task_.shape.scale * std::numbers::log2e_v<float>;
    partial.total = _mm512_reduce_add_ps(_mm512_add_ps(total[0], total[1]));
  }

  const Task<Bfloat16>& task_;
  Index head_dim_;
  std::uint32_t* keys_;    // [chunk_keys / 64 x head_dim / 2 x 64] pairs
  std::uint32_t* values_;  // [chunk_keys / 2 x head_dim] pairs
  Index fetched_head_ = 0, fetched_ = 0, fetched_end_ = 0, piece_ = 0;
};

#endif

/// Whether the kernel for pairs of bfloat16 can run.
template <class T>
bool has_pairs([[maybe_unused]] const AttentionShape& shape) {
#ifdef __x86_64__
  static const bool pairs = std::string_view(block_kernels().isa) == "avx512_bf16";
  if constexpr (std::is_same_v<T, Bfloat16>) return pairs && shape.head_dim % (columns * lanes) == 0;
#endif
  return false;
}

/// Joins the results of a query in the order of the chunks, and writes the query's result. The first chunk's outputs
/// are overwritten.
template <class T>
void join(const Task<T>& task, Index kv_head, Index query) {
  using Line = Eigen::Map<Eigen::ArrayXf, Eigen::AlignedMax>;
  const auto partial = [&](Index chunk) { return task.partial(kv_head, query, chunk); };
  const Index chunks = chunk_of(task.limit(query) - 1) + 1;
  float maximum = partial(0).maximum;
  for (Index chunk = 1; chunk < chunks; ++chunk) maximum = std::max(maximum, partial(chunk).maximum);
  float total = 0;
  Line outputs(partial(0).outputs, task.width);
  for (Index chunk = 0; chunk < chunks; ++chunk) {
    const float weight = std::exp2(partial(chunk).maximum - maximum);
    total += weight * partial(chunk).total;
    if (chunk == 0) {
      outputs *= weight;
    } else {
      outputs += weight * Line(partial(chunk).outputs, task.width);
    }
  }
  outputs /= total;
  round_to(outputs.data(), task.shape.head_dim, task.result(kv_head, query));
}

template <class Chunk, class T>
void run(lazyllm::cpu::Context& context, Task<T>& task) {
  const int threads = context.threads();
  const Index heads = task.shape.kv_heads, queries = task.query_count();
  task.width = Chunk::width(task.shape.head_dim);
  task.chunks = chunk_of(task.key_limits.back() - 1) + 1;
  const Index partials = heads * task.chunks * task.floats();
  const Index scratch = round_up(Chunk::scratch(task), alignment);
  float* const memory = context.scratch(partials + threads * scratch).data();
  task.partials = memory;
  std::unique_ptr<std::atomic<Index>[]> left(new std::atomic<Index>[static_cast<std::size_t>(heads)]);
  for (Index head = 0; head < heads; ++head) left[static_cast<std::size_t>(head)] = task.chunks;
  share_parts(threads, heads * task.chunks, 1, [&](Index part, Index, int worker) {
    const Index head = part / task.chunks;
    Chunk(task, memory + partials + worker * scratch).run(head, part % task.chunks);
    if (--left[static_cast<std::size_t>(head)] == 0) {
      for (Index query = 0; query < queries; ++query) join(task, head, query);
    }
  });
}

}  // namespace

// Measured. Threads do not count, since bits must not depend on them.
template <class T>
bool suits_few_rows(const AttentionShape& shape, Index rows) {
  return has_pairs<T>(shape) ? rows <= 32 : rows * shape.heads / shape.kv_heads <= 64;
}

template <class T>
void few_rows_attention(lazyllm::cpu::Context& context, const AttentionTask<T>& task,
                        [[maybe_unused]] FewRowsKernel kernel) {
  Task<T> whole{task, 0, 0, nullptr};
#ifdef __x86_64__
  if constexpr (std::is_same_v<T, Bfloat16>) {
    const bool copied = kernel == FewRowsKernel::automatic && task.query_count() > 9;  // measured
    if (copied && has_pairs<T>(task.shape)) return run<PairChunk>(context, whole);
  }
#endif
  run<InPlaceChunk<T>>(context, whole);
}

#define LLAMA_INSTANTIATE(T)                                     \
  template bool suits_few_rows<T>(const AttentionShape&, Index); \
  template void few_rows_attention(lazyllm::cpu::Context&, const AttentionTask<T>&, FewRowsKernel);
LLAMA_INSTANTIATE(float)
LLAMA_INSTANTIATE(Bfloat16)
#undef LLAMA_INSTANTIATE

}  // namespace llama
