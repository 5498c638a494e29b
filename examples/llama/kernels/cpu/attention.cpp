#include "examples/llama/kernels/cpu/attention.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#ifdef __AVX__
#include <immintrin.h>
#endif

#include "examples/llama/kernels/cpu/attention_blocks.hpp"
#include "examples/llama/kernels/cpu/few_rows_attention.hpp"
#include "examples/llama/kernels/cpu/team.hpp"
#include "examples/llama/library.hpp"

// Many queries go in blocks (attention_blocks.cpp), a few rows chunk by chunk (few_rows_attention.cpp). One or two
// queries of a key/value head, as in decode without shared heads, do not pay for another layout of the keys: here the
// elements of a head lie across the lanes, and keys and values are read in place, in chunks too.

namespace llama {
namespace {

#if defined(__AVX512F__)
constexpr int lanes = 16;
constexpr int sums = 16;  ///< vectors that a tile sums up; must fit the registers beside its operands
#elif defined(__AVX__)
constexpr int lanes = 8;
constexpr int sums = 8;
#else
constexpr int lanes = 4;
constexpr int sums = 8;
#endif
constexpr Index chunk_keys = 512;
constexpr Index fewest_queries = 2;  ///< of one key/value head: up to so many, `Chunks` is the fastest (measured)

using Vector [[gnu::vector_size(lanes * sizeof(float))]] = float;

/// Up to `lanes` of the `count` elements at `from` as floats, zeros behind them.
#ifdef __AVX512BW__
inline Vector load_floats(const float* from, Index count) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << std::min<Index>(count, lanes)) - 1), from);
}
inline Vector load_floats(const Eigen::bfloat16* from, Index count) {
  const auto mask = static_cast<__mmask32>((1u << std::min<Index>(count, lanes)) - 1);
  const __m256i halves = _mm512_castsi512_si256(_mm512_maskz_loadu_epi16(mask, from));
  return (Vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
}
#else
template <class Bits, class T>
Bits load_bits(const T* from, Index count) {
  Bits bits = {};
  if (count >= lanes) {
    std::memcpy(&bits, from, sizeof(bits));
  } else {
    std::memcpy(&bits, from, static_cast<std::size_t>(count) * sizeof(T));
  }
  return bits;
}
inline Vector load_floats(const float* from, Index count) { return load_bits<Vector>(from, count); }
inline Vector load_floats(const Eigen::bfloat16* from, Index count) {
  using Halves [[gnu::vector_size(lanes * sizeof(std::uint16_t))]] = std::uint16_t;
  using Words [[gnu::vector_size(lanes * sizeof(std::uint32_t))]] = std::uint32_t;
  return (Vector)(__builtin_convertvector(load_bits<Halves>(from, count), Words) << 16);
}
#endif

/// Products of floats: one step of depth is one element.
struct FloatProducts {
  static constexpr Index depth = 1;
  static Vector add(float a, Vector b, Vector sum) { return add(a - Vector{}, b, sum); }
  /// Fused explicitly: left to itself, gcc 14 for Zen 5 fuses in some loops and not in others, and the bits of a row
  /// would depend on the rows beside it.
  static Vector add(Vector a, Vector b, Vector sum) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, sum);
#elif defined(__AVX__) && defined(__FMA__)
    return _mm256_fmadd_ps(a, b, sum);
#else
    return a * b + sum;
#endif
  }
  template <class T>
  static Vector load(const T* from, Index count) {
    return load_floats(from, count);
  }
};

#ifdef __AVX512BF16__
/// Products of bfloat16: one step of depth is two neighbours, multiplied and summed in float by one instruction.
struct PairProducts {
  static constexpr Index depth = 2;
  static Vector add(Vector a, Vector b, Vector sum) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
  static Vector load(const Eigen::bfloat16* from, Index count) {
    const std::uint64_t elements = std::uint64_t{1} << std::min<Index>(count, depth * lanes);
    return (Vector)_mm512_maskz_loadu_epi16(static_cast<__mmask32>(elements - 1), from);
  }
};
#else
using PairProducts = FloatProducts;
#endif
template <class T>
using ProductsOf = std::conditional_t<std::is_same_v<T, float>, FloatProducts, PairProducts>;

/// Calls `body(first, height)` over [0, count) with compile-time heights: `tile_height` while they fit, then its
/// halves.
template <int tile_height, class Body>
void for_tiles(Index first, Index count, const Body& body) {
  for (; count - first >= tile_height; first += tile_height) body(first, std::integral_constant<int, tile_height>());
  if constexpr (tile_height > 1) for_tiles<tile_height / 2>(first, count, body);
}

/// lane i of the result is the sum of the lanes of vectors[i].
template <int count, int... lane>
[[gnu::always_inline]] inline Vector sums_of_lanes(const Vector (&vectors)[count],
                                                   std::integer_sequence<int, lane...> order) {
  if constexpr (count == 1) {
    return vectors[0];
  } else {
    Vector sum[count / 2];
    for (int i = 0; i < count / 2; ++i) {
      sum[i] = __builtin_shufflevector(vectors[2 * i], vectors[2 * i + 1], (2 * lane)...) +
               __builtin_shufflevector(vectors[2 * i], vectors[2 * i + 1], (2 * lane + 1)...);
    }
    return sums_of_lanes(sum, order);
  }
}

/// What one chunk of keys gives one query: the values' weighted sum and the weights' total, relative to the chunk's
/// largest score.
struct Partial {
  float* outputs;  // [head_dim]
  float& maximum;
  float& total;

  static Index floats(Index head_dim) { return round_up(head_dim) + lanes; }
  static Index round_up(Index count) { return (count + lanes - 1) / lanes * lanes; }
  Partial(float* memory, Index head_dim)
      : outputs(memory), maximum(memory[round_up(head_dim)]), total(memory[round_up(head_dim) + 1]) {}
};

/// A few queries of each key/value head, chunk by chunk of the keys, each with a softmax of its own.
template <class T>
class Chunks {
  using Products = ProductsOf<T>;
  using Line = Eigen::Map<Eigen::ArrayXf, Eigen::AlignedMax>;
  static constexpr int columns = 4;              ///< vectors of a value that a tile sums up
  static constexpr int height = sums / columns;  ///< queries that share one reading of keys and values

 public:
  explicit Chunks(const AttentionTask<T>& task) : task_(task), chunks_((task.key_limits.back() - 1) / chunk_keys + 1) {}

  void run(lazyllm::cpu::Context& context) {
    const int threads = context.threads();
    const Index queries = task_.query_count(), heads = task_.shape.kv_heads;
    const Index partials = heads * queries * chunks_ * Partial::floats(task_.shape.head_dim);
    memory_ = context.scratch(partials + threads * height * chunk_keys).data();
    share_parts(threads, heads * chunks_, 1, [&](Index part, Index, int worker) {
      float* const scores = memory_ + partials + worker * height * chunk_keys;
      for_tiles<height>(0, queries, [&]<int tile_height>(Index query, std::integral_constant<int, tile_height>) {
        attend<tile_height>(part / chunks_, part % chunks_, query, scores);
      });
    });
    for (Index i = 0; i < heads * queries; ++i) merge(i / queries, i % queries);
  }

 private:
  Partial partial(Index kv_head, Index query, Index chunk) const {
    const Index head_dim = task_.shape.head_dim;
    const Index number = (kv_head * task_.query_count() + query) * chunks_ + chunk;
    return {memory_ + number * Partial::floats(head_dim), head_dim};
  }

  /// The chunk's partial results for queries `query` to `query + tile_height - 1`. `scores` is `[tile_height x
  /// chunk_keys]`.
  template <int tile_height>
  void attend(Index kv_head, Index chunk, Index query, float* scores) const {
    const Index key = chunk * chunk_keys;
    const Index count = std::min<Index>(chunk_keys, task_.limit(query + tile_height - 1) - key);
    if (count <= 0) return;
    std::array<Index, chunk_keys> offsets;
    // Spare lanes repeat the last key.
    for (Index i = 0; i < Partial::round_up(count); ++i) {
      offsets[static_cast<std::size_t>(i)] = task_.offset(kv_head, key + std::min(i, count - 1));
    }
    for (Index i = 0; i < count; i += lanes) {
      for (int q = 0; q < tile_height; ++q) {
        score(task_.query(kv_head, query + q), offsets.data() + i, scores + q * chunk_keys + i);
      }
    }
    for (int q = 0; q < tile_height; ++q) {
      weigh(scores + q * chunk_keys, count, task_.limit(query + q) - key, partial(kv_head, query + q, chunk));
    }
    const Index head_dim = task_.shape.head_dim;
    const T* const values = task_.cache.values;
    for_tiles<columns>(0, Partial::round_up(head_dim) / lanes,
                       [&]<int tile_columns>(Index column, std::integral_constant<int, tile_columns>) {
                         const Index first = column * lanes;
                         Vector sum[tile_height][tile_columns] = {};
                         for (Index i = 0; i < count; ++i) {
                           const Index at = offsets[static_cast<std::size_t>(i)] + first;
                           for (int c = 0; c < tile_columns; ++c) {
                             const Vector floats = load_floats(values + at + c * lanes, head_dim - first - c * lanes);
                             for (int q = 0; q < tile_height; ++q) {
                               sum[q][c] = FloatProducts::add(scores[q * chunk_keys + i], floats, sum[q][c]);
                             }
                           }
                         }
                         for (int q = 0; q < tile_height; ++q) {
                           Vector* const to =
                               reinterpret_cast<Vector*>(partial(kv_head, query + q, chunk).outputs) + column;
                           for (int c = 0; c < tile_columns; ++c) to[c] = sum[q][c];
                         }
                       });
  }

  /// The products of a query with as many keys as there are lanes.
  void score(const T* query, const Index* offsets, float* scores) const {
    constexpr int step = lanes * Products::depth;
    const Index head_dim = task_.shape.head_dim;
    Vector sum[lanes] = {};
    const T* const keys = task_.cache.keys;
    for (Index first = 0; first < head_dim; first += step) {
      const Vector a = Products::load(query + first, head_dim - first);
      for (int i = 0; i < lanes; ++i) {
        sum[i] = Products::add(a, Products::load(keys + offsets[i] + first, head_dim - first), sum[i]);
      }
    }
    const Vector result = sums_of_lanes(sum, std::make_integer_sequence<int, lanes>());
    std::memcpy(scores, &result, sizeof(result));
  }

  /// Scores of `count` keys to weights, exactly 0 for all but the first `limit`.
  void weigh(float* scores, Index count, Index limit, Partial result) const {
    const Index visible = std::clamp<Index>(limit, 0, count);
    if (visible > 0) {
      result.maximum = Line(scores, visible).maxCoeff();
      Line line(scores, Partial::round_up(visible));
      line = ((line - result.maximum) * task_.shape.scale).exp();
      std::fill(scores + visible, scores + line.size(), 0.0f);
      result.total = line.sum();
    }
    std::fill(scores + visible, scores + count, 0.0f);
  }

  /// Sums up the partial results of a query, in the order of the chunks.
  void merge(Index kv_head, Index query) const {
    join_chunks<Line>(task_, chunk_keys, kv_head, query, [&](Index chunk) { return partial(kv_head, query, chunk); });
  }

  const AttentionTask<T>& task_;
  Index chunks_;
  float* memory_ = nullptr;
};

}  // namespace

template <class T>
void attention(lazyllm::cpu::Context& context, const AttentionShape& shape, const KeyValues<T>& cache, Positions keys,
               Positions key_limits, RowsView<const T> queries, RowsView<T> out, BlockProducts products) {
  const AttentionTask<T> task{shape, queries, cache, keys, key_limits, out};
  check_shape("attention", shape);
  check_rows("attention", task);
  const Index rows = queries.rows;
  if (rows == 0) return;
  if (task.query_count() <= fewest_queries) return Chunks<T>(task).run(context);
  if (suits_few_rows<T>(shape, rows)) return few_rows_attention(context, task);
  attend_in_blocks(context, task, products);
}

template <class T>
void attention(lazyllm::cpu::Context& context, const HostPlan<T>& plan, Index layer, RowsView<const T> queries,
               RowsView<T> out) {
  const AttentionShape& shape = plan.shape();
  const Index width = shape.heads * shape.head_dim;
  if (queries.rows != plan.query_rows() || queries.width != width || out.rows != queries.rows || out.width != width)
    fail("attention: queries [", queries.rows, " x ", queries.width, "] and out [", out.rows, " x ", out.width,
         "], allowed are [", plan.query_rows(), " x ", width, "]");
  for (Index s = 0; s < plan.sequences(); ++s) {
    const auto own = plan.queries(s);
    const Index rows = std::ssize(own.positions);
    if (rows == 0) continue;
    const KvView<T>& view = plan.cache(s);
    const Index at = layer * view.layer_stride;
    const KeyValues<T> cache{view.keys + at, view.values + at, view.position_stride, view.head_stride};
    const Positions keys = plan.sequence(s).keys;
    const auto own_queries = queries.subrows(own.first_row, rows);
    const auto own_out = out.subrows(own.first_row, rows);
    attention<T>(context, shape, cache, keys, own.key_limits, own_queries, own_out);
  }
}

#define LLAMA_INSTANTIATE(T)                                                                                        \
  template void attention(lazyllm::cpu::Context&, const AttentionShape&, const KeyValues<T>&, Positions, Positions, \
                          RowsView<const T>, RowsView<T>, BlockProducts);                                           \
  template void attention(lazyllm::cpu::Context&, const HostPlan<T>&, Index, RowsView<const T>, RowsView<T>);
LLAMA_INSTANTIATE(float)
LLAMA_INSTANTIATE(Eigen::bfloat16)
#undef LLAMA_INSTANTIATE

}  // namespace llama
