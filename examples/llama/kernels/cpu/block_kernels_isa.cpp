// Compiled once for each instruction set; LLAMA_ISA is its name. Everything here is this file's own, and it calls no
// function of a header: of inline functions the linker keeps one copy, perhaps one that the processor cannot run.

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <type_traits>
#include <utility>

#include "examples/llama/kernels/cpu/block_kernels.hpp"

namespace llama {
namespace {

#if defined(__AVX512F__)
constexpr int lanes = 16;
constexpr int tile_rows = 4, tile_vectors = 4;
#elif defined(__AVX2__)
constexpr int lanes = 8;
constexpr int tile_rows = 6, tile_vectors = 2;
#else
constexpr int lanes = 4;
constexpr int tile_rows = 4, tile_vectors = 2;
#endif
constexpr int scored_queries = 8;  ///< of a tile of `score`, each with one vector
constexpr int summed_queries = 6;  ///< of a tile of `sum`, each with `tile_vectors`: they must fit the registers
static_assert(block_step % lanes == 0);

using Vector [[gnu::vector_size(lanes * sizeof(float))]] = float;
using Words [[gnu::vector_size(lanes * sizeof(unsigned))]] = unsigned;

inline Vector load(const float* from) {
  Vector value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}

inline void store(float* to, Vector value) { __builtin_memcpy(to, &value, sizeof(value)); }

inline Vector all(float value) { return value - Vector{}; }

/// a * b + c, fused in every loop or in none: a row's bits must not depend on the loop that it is in.
inline Vector fused(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

/// The larger one; b where a or b is NaN, as the processors' instructions have it.
inline Vector larger(Vector a, Vector b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

/// 2^x for x <= 0, within 3e-6 of it, or 2e-7 where it is `exact`; 0 from -127 down at the latest. NaN stays NaN.
template <bool exact>
Vector exp2(Vector x) {
  constexpr float five[] = {0.00132669704f, 0.00967545975f, 0.0555074262f, 0.240221218f, 0.693146949f, 1.0f};
  constexpr float four[] = {0.00956051021f, 0.0559170392f, 0.240249811f, 0.693121968f, 0.999999191f};
  x = larger(all(-127), x);
#if defined(__AVX512F__)
  const Vector whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const Vector magic = all(12582912);  // 1.5 * 2^23: a sum with it has no places behind the point
  const Vector shifted = x + magic;
  const Vector whole = shifted - magic;
#endif
  const Vector rest = x - whole;
  Vector power = all(exact ? five[0] : four[0]);
  for (int i = 1; i < (exact ? 6 : 5); ++i) power = fused(power, rest, all(exact ? five[i] : four[i]));
#if defined(__AVX512F__)
  return _mm512_mask_scalef_ps(Vector{}, _mm512_cmp_ps_mask(whole, all(-127), _CMP_NEQ_UQ), power, whole);
#else
  return power * (Vector)(((Words)shifted << 23) + (127u << 23));
#endif
}

template <int distance, int... lane>
Vector exchanged(Vector value, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(value, value, (lane ^ distance)...);
}

template <int distance, class Join>
float joined(Vector value, const Join& join) {
  if constexpr (distance == 0) {
    return value[0];
  } else {
    value = join(value, exchanged<distance>(value, std::make_integer_sequence<int, lanes>()));
    return joined<distance / 2>(value, join);
  }
}

inline float largest_of(Vector value) {
  return joined<lanes / 2>(value, [](Vector a, Vector b) { return larger(a, b); });
}
inline float sum_of(Vector value) {
  return joined<lanes / 2>(value, [](Vector a, Vector b) { return a + b; });
}

/// `value` in the first `count` lanes, `other` in the rest.
inline Vector first_lanes(Vector value, Index count, float other) {
  Words lane;
  for (unsigned i = 0; i < lanes; ++i) lane[i] = i;
  return lane < static_cast<unsigned>(count) - Words{} ? value : all(other);
}

inline void store_rounded(std::uint16_t* to, Vector value) {
#ifdef __AVX512BF16__
  const __m256bh rounded = _mm512_cvtneps_pbh(value);
  __builtin_memcpy(to, &rounded, sizeof(rounded));
#else
  using Halves [[gnu::vector_size(lanes * sizeof(std::uint16_t))]] = std::uint16_t;
  const Words bits = (Words)value;
  const Halves rounded = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, Halves);
  __builtin_memcpy(to, &rounded, sizeof(rounded));
#endif
}

/// `put(k, weights)` receives the weights of `lanes` keys from key k of the row on.
template <bool exact, class Put>
void weigh_row(const ScoreBlock& block, Index row, const Put& put) {
  const float* const scores = block.scores + row * block.keys;
  const Index visible = block.visible[row];
  const Index whole = visible / lanes * lanes;
  const Index rest = visible - whole;
  if (visible > 0) {
    Vector largest = all(-__builtin_inff());
    for (Index k = 0; k < whole; k += lanes) largest = larger(load(scores + k), largest);
    if (rest > 0) largest = larger(first_lanes(load(scores + whole), rest, -__builtin_inff()), largest);
    const float before = block.maximum[row];
    const float scaled = largest_of(largest) * block.scale;
    const float maximum = scaled > before ? scaled : before;
    block.maximum[row] = maximum;
    const float correction = exp2<exact>(all(before - maximum))[0];
    block.correction[row] = correction;

    Vector total = {};
    const Vector scale = all(block.scale), offset = all(-maximum);
    for (Index k = 0; k < whole; k += lanes) {
      const Vector weights = exp2<exact>(fused(load(scores + k), scale, offset));
      total += weights;
      put(k, weights);
    }
    if (rest > 0) {
      const Vector weights = first_lanes(exp2<exact>(fused(load(scores + whole), scale, offset)), rest, 0);
      total += weights;
      put(whole, weights);
    }
    block.total[row] = block.total[row] * correction + sum_of(total);
  }
  for (Index k = whole + (rest > 0 ? lanes : 0); k < block.keys; k += lanes) put(k, Vector{});
}

void weigh(const ScoreBlock& block) {
  for (Index row = 0; row < block.rows; ++row) {
    float* const weights = block.scores + row * block.keys;
    weigh_row<true>(block, row, [weights](Index k, Vector value) { store(weights + k, value); });
  }
}

void weigh_rounded(const ScoreBlock& block, std::uint16_t* weights) {
  for (Index row = 0; row < block.rows; ++row, weights += block.keys) {
    weigh_row<false>(block, row, [weights](Index k, Vector value) { store_rounded(weights + k, value); });
  }
}

void accumulate(const ScoreBlock& block, Index width, const float* added, float* sums) {
  for (Index row = 0; row < block.rows; ++row) {
    if (block.visible[row] == 0) continue;
    const Vector correction = all(block.correction[row]);
    for (Index i = row * width; i < (row + 1) * width; i += lanes) {
      store(sums + i, fused(load(sums + i), correction, load(added + i)));
    }
  }
}

/// Unrolled by pragmas: below -O3 gcc 12 leaves the loops over a tile loops, with the sums in memory.
template <int height, int vectors>
void multiply_tile(Index depth, Index columns, const float* a, const float* b, Index b_stride, float* c) {
  Vector sum[height][vectors] = {};
  for (Index k = 0; k < depth; ++k) {
#pragma GCC unroll 8
    for (int i = 0; i < height; ++i) {
      const Vector element = all(a[i * depth + k]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sum[i][v] = fused(element, load(b + k * b_stride + v * lanes), sum[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < height; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) store(c + i * columns + v * lanes, sum[i][v]);
  }
}

/// Calls `body(first, height)` for parts of [0, count) of about equal heights, `most` or fewer, known to the compiler.
template <int most, class Body, int... less>
void for_tiles(Index count, const Body& body, std::integer_sequence<int, less...>) {
  for (Index first = 0, tiles = (count + most - 1) / most; tiles > 0; --tiles) {
    const Index height = (count - first + tiles - 1) / tiles;
    ((height == less + 1 ? body(first, std::integral_constant<int, less + 1>()) : void()), ...);
    first += height;
  }
}

template <int vectors>
void multiply_columns(Index rows, Index depth, Index columns, const float* a, const float* b, Index b_stride,
                      float* c) {
  const auto tile = [=]<int height>(Index first, std::integral_constant<int, height>) {
    multiply_tile<height, vectors>(depth, columns, a + first * depth, b, b_stride, c + first * columns);
  };
  for_tiles<tile_rows>(rows, tile, std::make_integer_sequence<int, tile_rows>());
}

void multiply(Index rows, Index depth, Index columns, const float* a, const float* b, Index b_stride, float* c) {
  Index column = 0;
  for (; columns - column >= tile_vectors * lanes; column += tile_vectors * lanes) {
    multiply_columns<tile_vectors>(rows, depth, columns, a, b + column, b_stride, c + column);
  }
  for (; column < columns; column += lanes) {
    multiply_columns<1>(rows, depth, columns, a, b + column, b_stride, c + column);
  }
}

/// Exchanges the lanes of `a` that have `distance` in their number with those of `b` that do not.
template <int distance, int... lane>
void exchange(Vector& a, Vector& b, std::integer_sequence<int, lane...>) {
  const Vector first = __builtin_shufflevector(a, b, ((lane & distance) != 0 ? lanes + lane - distance : lane)...);
  b = __builtin_shufflevector(a, b, ((lane & distance) != 0 ? lanes + lane : lane + distance)...);
  a = first;
}

template <int distance>
void transpose_square(Vector (&rows)[lanes]) {
  for (int i = 0; i < lanes; ++i) {
    if ((i & distance) == 0) {
      exchange<distance>(rows[i], rows[i + distance], std::make_integer_sequence<int, lanes>());
    }
  }
  if constexpr (distance > 1) transpose_square<distance / 2>(rows);
}

void transpose(Index rows, Index width, const float* from, float* to, Index to_stride) {
  for (Index column = 0; column < width; column += lanes) {
    for (Index row = 0; row < rows; row += lanes) {
      Vector square[lanes];
      for (int i = 0; i < lanes; ++i) square[i] = load(from + (row + i) * width + column);
      transpose_square<lanes / 2>(square);
      for (int i = 0; i < lanes; ++i) store(to + (column + i) * to_stride + row, square[i]);
    }
  }
}

/// `lanes` elements as floats.
inline Vector widened(const float* from) { return load(from); }
/// By intrinsics: gcc 12 takes six instructions for what one does.
inline Vector widened(const std::uint16_t* from) {
#if defined(__AVX512F__)
  return (Vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from)), 16);
#elif defined(__AVX2__)
  return (Vector)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from)), 16);
#else
  using Halves [[gnu::vector_size(lanes * sizeof(std::uint16_t))]] = std::uint16_t;
  Halves bits;
  __builtin_memcpy(&bits, from, sizeof(bits));
  return (Vector)(__builtin_convertvector(bits, Words) << 16);
#endif
}

template <class T>
void fetch(const T* row, Index width) {
  for (Index k = 0; k < width; k += static_cast<Index>(64 / sizeof(T))) __builtin_prefetch(row + k, 0, 2);
}

/// Lane by lane, neighbouring units of `grain` lanes are summed up: first those of a, then those of b. Below four lanes
/// this happens within each four lanes of both.
template <int grain, int... lane>
Vector neighbours(Vector a, Vector b, std::integer_sequence<int, lane...>) {
  constexpr int whole = grain < 4 ? 4 : lanes;
  constexpr int half = whole / grain / 2;
  const auto from = [](int to, int odd) constexpr {
    const int unit = to % whole / grain;
    return unit / half * lanes + to / whole * whole + (unit % half * 2 + odd) * grain + to % grain;
  };
  return __builtin_shufflevector(a, b, from(lane, 0)...) + __builtin_shufflevector(a, b, from(lane, 1)...);
}

/// Lane i of the result is the sum of the lanes of vectors[i].
template <int count>
Vector sums_of_lanes(const Vector (&vectors)[count]) {
  constexpr int grain = count * 4 > lanes ? 1 : 4;
  Vector sums[count / 2];
#pragma GCC unroll 8
  for (int i = 0; i < count / 2; ++i) {
    sums[i] = neighbours<grain>(vectors[2 * i], vectors[2 * i + 1], std::make_integer_sequence<int, lanes>());
  }
  if constexpr (count == 2) {
    return sums[0];
  } else {
    return sums_of_lanes(sums);
  }
}

/// A tile of queries, multiplied in float.
template <int height>
struct FloatQueries {
  static constexpr Index step = lanes;  ///< elements that are multiplied at a time

  template <class T>
  static Vector elements(const T* row) {
    return widened(row);
  }
  /// sum + the products of elements k to k + step - 1 of query q.
  Vector add(Vector sum, int q, Index k, Vector elements) const {
    return fused(load(from + q * width + k), elements, sum);
  }

  const float* from;  ///< `[height x width]`
  Index width;
};

template <template <int> class Queries, class T>
void score(Index queries, Index width, Index count, const float* query, const T* const* rows, float* scores,
           Index stride) {
  const auto tile = [=]<int height>(Index first, std::integral_constant<int, height>) {
    const Queries<height> from{query + first * width, width};
    for (Index i = 0; i < count; i += lanes) {
      Vector products[height][lanes];
      for (int key = 0; key < lanes; ++key) {
        const T* const row = rows[i + key];
        fetch(rows[i + key + rows_ahead], width);
        Vector sum[height] = {};
        for (Index k = 0; k < width; k += from.step) {
          const auto elements = from.elements(row + k);
#pragma GCC unroll 8
          for (int q = 0; q < height; ++q) sum[q] = from.add(sum[q], q, k, elements);
        }
#pragma GCC unroll 8
        for (int q = 0; q < height; ++q) products[q][key] = sum[q];
      }
      for (int q = 0; q < height; ++q) store(scores + (first + q) * stride + i, sums_of_lanes(products[q]));
    }
  };
  for_tiles<scored_queries>(queries, tile, std::make_integer_sequence<int, scored_queries>());
}

template <class T>
void sum(Index queries, Index width, Index count, const float* weights, Index stride, const T* const* rows,
         float* sums) {
  const auto tile = [=]<int height>(Index first, std::integral_constant<int, height>) {
    const float* const from = weights + first * stride;
    const auto columns = [&]<int vectors>(Index column, std::integral_constant<int, vectors>) {
      Vector result[height][vectors] = {};
      for (Index i = 0; i < count; ++i) {
        const T* const row = rows[i] + column;
        fetch(rows[i + rows_ahead] + column, vectors * lanes);
        Vector elements[vectors];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) elements[v] = widened(row + v * lanes);
#pragma GCC unroll 8
        for (int q = 0; q < height; ++q) {
          const Vector weight = all(from[q * stride + i]);
#pragma GCC unroll 4
          for (int v = 0; v < vectors; ++v) result[q][v] = fused(weight, elements[v], result[q][v]);
        }
      }
#pragma GCC unroll 8
      for (int q = 0; q < height; ++q) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) store(sums + (first + q) * width + column + v * lanes, result[q][v]);
      }
    };
    Index column = 0;
    for (; width - column >= tile_vectors * lanes; column += tile_vectors * lanes) {
      columns(column, std::integral_constant<int, tile_vectors>());
    }
    for (; column < width; column += lanes) columns(column, std::integral_constant<int, 1>());
  };
  for_tiles<summed_queries>(queries, tile, std::make_integer_sequence<int, summed_queries>());
}

#ifdef __AVX512BF16__

constexpr Index pair_lanes = 2 * lanes;   ///< elements of a vector of pairs
constexpr Index most_paired_width = 256;  ///< of rows that are multiplied in pairs

inline __m512i load_pairs(const std::uint16_t* from) { return _mm512_loadu_si512(from); }

/// The first `count` of `lanes` floats, of which no others are read, and zeros behind them.
inline Vector load_first(const float* from, Index count) {
  const int mask = count >= lanes ? 0xffff : count <= 0 ? 0 : (1 << count) - 1;
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), from);
}

/// sum + a[2 i] b[2 i] + a[2 i + 1] b[2 i + 1], for each i.
inline Vector add_pairs(Vector sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

/// A tile of queries, rounded to bfloat16.
template <int height>
struct PairedQueries {
  static constexpr Index step = pair_lanes;

  PairedQueries(const float* query, Index width) {
    for (int q = 0; q < height; ++q) {
      for (Index k = 0; k < width; k += lanes) store_rounded(from[q] + k, load(query + q * width + k));
    }
  }

  static __m512i elements(const std::uint16_t* row) { return load_pairs(row); }
  Vector add(Vector sum, int q, Index k, __m512i elements) const {
    return add_pairs(sum, load_pairs(from[q] + k), elements);
  }

  alignas(64) std::uint16_t from[height][most_paired_width];
};

/// Elements `column` to `column + vectors * pair_lanes - 1` of the sums of a tile, by weights rounded to bfloat16. Two
/// rows make a vector of pairs.
template <int height, int vectors>
void sum_pairs(Index width, Index count, const float* weights, Index stride, const std::uint16_t* const* rows,
               Index column, float* sums) {
  Vector low[height][vectors] = {}, high[height][vectors] = {};
  for (Index first = 0; first < count; first += pair_lanes) {
    const Index some = count - first < pair_lanes ? count - first : pair_lanes;
    alignas(64) std::uint16_t pairs[height][pair_lanes];
    for (int q = 0; q < height; ++q) {
      const float* const weight = weights + q * stride + first;
      for (Index k = 0; k < pair_lanes; k += lanes) store_rounded(pairs[q] + k, load_first(weight + k, some - k));
    }
    for (Index i = 0; i < some; i += 2) {
      const std::uint16_t* const* const row = rows + first + i;
      const bool two = i + 1 < some;
      fetch(row[rows_ahead] + column, vectors * pair_lanes);
      if (two) fetch(row[rows_ahead + 1] + column, vectors * pair_lanes);
      __m512i low_pairs[vectors], high_pairs[vectors];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        const __m512i even = load_pairs(row[0] + column + v * pair_lanes);
        const __m512i odd = two ? load_pairs(row[1] + column + v * pair_lanes) : _mm512_setzero_si512();
        low_pairs[v] = _mm512_unpacklo_epi16(even, odd);
        high_pairs[v] = _mm512_unpackhi_epi16(even, odd);
      }
#pragma GCC unroll 8
      for (int q = 0; q < height; ++q) {
        int pair;
        __builtin_memcpy(&pair, pairs[q] + i, sizeof(pair));
        const __m512i weight = _mm512_set1_epi32(pair);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
          low[q][v] = add_pairs(low[q][v], weight, low_pairs[v]);
          high[q][v] = add_pairs(high[q][v], weight, high_pairs[v]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < height; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      // Of each eight elements `low` has the first four, `high` the others.
      const Vector a = low[q][v], b = high[q][v];
      float* const to = sums + q * width + column + v * pair_lanes;
      store(to, __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23));
      store(to + lanes, __builtin_shufflevector(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31));
    }
  }
}

bool suits_pairs(Index width) { return width % pair_lanes == 0 && width <= most_paired_width; }

void score_bfloat16(Index queries, Index width, Index count, const float* query, const std::uint16_t* const* rows,
                    float* scores, Index stride) {
  const auto run = suits_pairs(width) ? score<PairedQueries, std::uint16_t> : score<FloatQueries, std::uint16_t>;
  run(queries, width, count, query, rows, scores, stride);
}

void sum_bfloat16(Index queries, Index width, Index count, const float* weights, Index stride,
                  const std::uint16_t* const* rows, float* sums) {
  if (!suits_pairs(width)) return sum(queries, width, count, weights, stride, rows, sums);
  const auto tile = [=]<int height>(Index first, std::integral_constant<int, height>) {
    const float* const from = weights + first * stride;
    float* const to = sums + first * width;
    Index column = 0;
    for (; width - column >= 2 * pair_lanes; column += 2 * pair_lanes) {
      sum_pairs<height, 2>(width, count, from, stride, rows, column, to);
    }
    if (column < width) sum_pairs<height, 1>(width, count, from, stride, rows, column, to);
  };
  for_tiles<summed_queries>(queries, tile, std::make_integer_sequence<int, summed_queries>());
}

#else

constexpr auto* score_bfloat16 = score<FloatQueries, std::uint16_t>;
constexpr auto* sum_bfloat16 = sum<std::uint16_t>;

#endif

}  // namespace

#define LLAMA_STRING(text) #text
#define LLAMA_NAME(name) LLAMA_STRING(name)
namespace isa {
extern const BlockKernels LLAMA_ISA;
const BlockKernels LLAMA_ISA = {weigh,
                                weigh_rounded,
                                accumulate,
                                multiply,
                                transpose,
                                {score<FloatQueries, float>, sum<float>},
                                {score_bfloat16, sum_bfloat16},
                                LLAMA_NAME(LLAMA_ISA)};
}  // namespace isa

}  // namespace llama
