#include "examples/llama/kernels/cpu/panels.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#ifdef __x86_64__
#include <immintrin.h>
#endif

// A tile of rows and outputs stays in registers while it runs along the inputs. More rows than a tile has take several
// passes over a stretch of the inputs that stays in a cache, while the next stretch is fetched there: evenly over all
// passes, since memory is what a product of a few rows waits for.
//
// The loops over the rows and vectors of a tile are unrolled by pragmas. Of its own gcc 12 leaves them loops at -O2,
// with the sums in memory, and at -O3 unrolls them so late that the sums go through memory where a pass begins and
// ends.

namespace llama {
namespace {

constexpr Index width = 64;  ///< outputs of a panel

std::int32_t group_at(const std::byte* at) {
  std::int32_t group;
  std::memcpy(&group, at, sizeof(group));
  return group;
}

/// Calls `run.template operator()<height>()` if it is one of `heights`.
template <int... heights, class Run>
void with_height(Index height, const Run& run, std::integer_sequence<int, heights...>) {
  ((height == heights ? run.template operator()<heights>() : void()), ...);
}

#ifdef __x86_64__
/// Where passes of AVX-512 find a stretch again. The first cache is the better one: the second one is slow to give the
/// weights to each pass and to take the next ones from memory meanwhile. But 32 KiB are too few.
enum class Cache { first, second };

/// Groups of inputs: at most 12 and 64 KiB of a panel with AVX-512, 16 with AVX2.
constexpr Index first_stretch512 = 48, second_stretch512 = 256, stretch256 = 64;

/// Calls `run.template operator()<height, passes>()` for tiles and passes that hold `rows`.
template <class Run>
void for_height(Index rows, const Run& run) {
  const auto choose = [&]<int passes, int... heights>(std::integer_sequence<int, passes, heights...>) {
    with_height((rows + passes - 1) / passes, [&]<int height>() { run.template operator()<height, passes>(); },
                std::integer_sequence<int, heights...>());
  };
  if (rows <= 6) {
    choose(std::integer_sequence<int, 1, 1, 2, 3, 4, 5, 6>());
  } else if (rows <= 12) {
    choose(std::integer_sequence<int, 2, 4, 5, 6>());
  } else if (rows <= 18) {
    choose(std::integer_sequence<int, 3, 5, 6>());
  } else {
    choose(std::integer_sequence<int, 4, 5, 6>());
  }
}

#define LLAMA_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni,fma")))
#define LLAMA_AVX2 __attribute__((target("avx2,fma")))

struct Floats512 {
  using Sum = float;
  using Vector = __m512;
  LLAMA_AVX512 static Vector load(const Sum* from) { return _mm512_load_ps(from); }
  LLAMA_AVX512 static void store(Sum* to, Vector sum) { _mm512_store_ps(to, sum); }
  LLAMA_AVX512 static Vector zero() { return _mm512_setzero_ps(); }
  LLAMA_AVX512 static Vector add(Vector sum, __m512i x, __m512i weights) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(weights), sum);
  }
};

struct Pairs512 : Floats512 {
  LLAMA_AVX512 static Vector add(Vector sum, __m512i x, __m512i weights) {
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)weights);
  }
};

/// Without instructions for bfloat16: its bits are the upper half of a float's.
struct WidenedPairs512 : Floats512 {
  LLAMA_AVX512 static Vector even(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
  LLAMA_AVX512 static Vector odd(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  LLAMA_AVX512 static Vector add(Vector sum, __m512i x, __m512i weights) {
    return _mm512_fmadd_ps(odd(x), odd(weights), _mm512_fmadd_ps(even(x), even(weights), sum));
  }
};

struct Fours512 {
  using Sum = std::int32_t;
  using Vector = __m512i;
  LLAMA_AVX512 static Vector load(const Sum* from) { return _mm512_load_si512(from); }
  LLAMA_AVX512 static void store(Sum* to, Vector sum) { _mm512_store_si512(to, sum); }
  LLAMA_AVX512 static Vector zero() { return _mm512_setzero_si512(); }
  /// Not `_mm512_dpbusd_epi32`: gcc 12 copies each sum before and after it, and keeps some in memory.
  LLAMA_AVX512 static Vector add(Vector sum, __m512i x, __m512i weights) {
    asm("vpdpbusd {%2, %1, %0|%0, %1, %2}" : "+v"(sum) : "v"(x), "v"(weights));
    return sum;
  }
};

/// `height` rows times `columns` vectors of outputs along `groups` groups. Fetches `lines` of 64 bytes for each group,
/// from `fetched` on, to the cache that `hint` names.
template <class Products, int height, int columns, int lines, auto hint>
LLAMA_AVX512 void pass512(const std::uint32_t* weights, Index groups, const std::byte* const* x, bool begin,
                          const std::uint32_t* fetched, typename Products::Sum* sums) {
  typename Products::Vector sum[height][columns];
#pragma GCC unroll 8
  for (int i = 0; i < height; ++i) {
#pragma GCC unroll 8
    for (int c = 0; c < columns; ++c) {
      sum[i][c] = begin ? Products::zero() : Products::load(sums + i * width + c * 16);
    }
  }
  for (Index k = 0; k < groups; ++k) {
    for (int line = 0; line < lines; ++line) {
      _mm_prefetch(reinterpret_cast<const char*>(fetched + (k * lines + line) * 16), hint);
    }
    __m512i weight[columns];
#pragma GCC unroll 8
    for (int c = 0; c < columns; ++c) weight[c] = _mm512_loadu_si512(weights + k * width + c * 16);
#pragma GCC unroll 8
    for (int i = 0; i < height; ++i) {
      const __m512i group = _mm512_set1_epi32(group_at(x[i] + 4 * k));
#pragma GCC unroll 8
      for (int c = 0; c < columns; ++c) sum[i][c] = Products::add(sum[i][c], group, weight[c]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < height; ++i) {
#pragma GCC unroll 8
    for (int c = 0; c < columns; ++c) Products::store(sums + i * width + c * 16, sum[i][c]);
  }
}

template <class Products, Cache cache, int columns>
void run512(const std::uint32_t* weights, Index groups, const std::byte* x, Index x_stride, Index rows,
            typename Products::Sum* sums) {
  for_height(rows, [&]<int height, int passes>() {
    // Of half a panel nothing is fetched: there is one for each thread at most.
    constexpr int lines = columns == 4 ? columns / passes : 0;
    constexpr int first_lines = columns == 4 ? columns - lines * (passes - 1) : 0;
    const auto spare = static_cast<int>(height * passes - rows);  // so many of the last tiles have a row less
    std::array<const std::byte*, height * passes> from;
    constexpr bool second = cache == Cache::second && passes > 1;
    constexpr Index most = second ? second_stretch512 : first_stretch512;
    constexpr auto hint = second ? _MM_HINT_T1 : _MM_HINT_T0;
    // Stretches are even, so that the last one fetches the first one of the next panel.
    const Index stretches = (groups + most - 1) / most;
    for (Index stretch = 0, k = 0, end = 0; stretch < stretches; ++stretch, k = end) {
      end = groups * (stretch + 1) / stretches;
      const Index count = end - k;
      for (Index i = 0; i < rows; ++i) from[static_cast<std::size_t>(i)] = x + i * x_stride + 4 * k;
      const std::uint32_t* fetched = weights + end * width;  // may lie behind the weights, where it does nothing
      int row = 0;
      const auto pass = [&]<int tile, int fetches>() {
        pass512<Products, tile, columns, fetches, hint>(weights + k * width, count, from.data() + row, k == 0, fetched,
                                                        sums + row * width);
        row += tile;
        fetched += count * fetches * 16;
      };
      pass.template operator()<height, first_lines>();
      if constexpr (passes > 1) {
        for (int i = 1; i < passes; ++i) {
          i < passes - spare ? pass.template operator()<height, lines>()
                             : pass.template operator()<height - 1, lines>();
        }
      }
    }
  });
}

template <class Products, Cache cache>
void kernel512(const void* panel, Index groups, const std::byte* x, Index x_stride, Index rows, Index first,
               Index count, void* sums) {
  const auto* weights = static_cast<const std::uint32_t*>(panel) + first;
  auto* to = static_cast<typename Products::Sum*>(sums);
  if (count == width) {
    run512<Products, cache, 4>(weights, groups, x, x_stride, rows, to);
  } else {
    run512<Products, cache, 2>(weights, groups, x, x_stride, rows, to);
  }
}

/// A group is of one part, or of two: the even and the odd ones of what it holds.
struct Floats256 {
  using Sum = float;
  using Vector = __m256;
  static constexpr int parts = 1;
  LLAMA_AVX2 static Vector load(const Sum* from) { return _mm256_load_ps(from); }
  LLAMA_AVX2 static void store(Sum* to, Vector sum) { _mm256_store_ps(to, sum); }
  LLAMA_AVX2 static Vector zero() { return _mm256_setzero_ps(); }
  template <int>
  LLAMA_AVX2 static __m256i part(__m256i floats) {
    return floats;
  }
  /// Not `_mm256_fmadd_ps`: of up to 4 rows of floats gcc 12 then loads the weights anew for each row.
  LLAMA_AVX2 static Vector add(Vector sum, __m256i x, __m256i weights) {
    asm("vfmadd231ps {%2, %1, %0|%0, %1, %2}" : "+x"(sum) : "x"(x), "x"(weights));
    return sum;
  }
};

struct Pairs256 : Floats256 {
  static constexpr int parts = 2;
  template <int odd>
  LLAMA_AVX2 static __m256i part(__m256i pairs) {
    return odd == 0 ? _mm256_slli_epi32(pairs, 16)
                    : _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
  }
  template <int odd>
  LLAMA_AVX2 static __m256i part_of_x(__m256i pairs) {
    return part<odd>(pairs);
  }
};

struct Fours256 {
  using Sum = std::int32_t;
  using Vector = __m256i;
  static constexpr int parts = 2;
  LLAMA_AVX2 static Vector load(const Sum* from) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(from)); }
  LLAMA_AVX2 static void store(Sum* to, Vector sum) { _mm256_store_si256(reinterpret_cast<__m256i*>(to), sum); }
  LLAMA_AVX2 static Vector zero() { return _mm256_setzero_si256(); }
  template <int odd>
  LLAMA_AVX2 static __m256i part(__m256i fours) {
    return _mm256_srai_epi16(odd == 0 ? _mm256_slli_epi16(fours, 8) : fours, 8);
  }
  template <int odd>
  LLAMA_AVX2 static __m256i part_of_x(__m256i fours) {
    return odd == 0 ? _mm256_and_si256(fours, _mm256_set1_epi16(0xff)) : _mm256_srli_epi16(fours, 8);
  }
  /// Not `_mm256_add_epi32`: gcc 12 puts some sums where the products were, and then keeps sums in memory.
  LLAMA_AVX2 static Vector add(Vector sum, __m256i x, __m256i weights) {
    const __m256i products = _mm256_madd_epi16(x, weights);
    asm("vpaddd {%1, %0, %0|%0, %0, %1}" : "+x"(sum) : "x"(products));
    return sum;
  }
};

/// A row's groups of two parts of a stretch: the first part of each, then the second.
using StretchOfX = std::array<std::uint32_t, std::size_t{stretch256} * 2>;

/// What lies behind `groups` in `to` is never multiplied. Fetches the row's next stretch: of many rows each has so
/// short a piece that the processor does not see where it goes on.
template <class Products>
LLAMA_AVX2 void split(const std::byte* x, Index groups, StretchOfX& to) {
  constexpr Index bytes = 4 * stretch256, line = 64;
  for (Index at = 0; at < bytes; at += line) {
    _mm_prefetch(reinterpret_cast<const char*>(x) + bytes + at, _MM_HINT_T1);
  }
  std::array<std::uint32_t, std::size_t{stretch256}> whole;
  if (groups % 8 != 0) {  // eight at once would read behind the row
    std::memcpy(whole.data(), x, static_cast<std::size_t>(groups) * sizeof(whole[0]));
    x = reinterpret_cast<const std::byte*>(whole.data());
  }
  for (Index k = 0; k < groups; k += 8) {
    const __m256i eight = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 4 * k));
    auto* const at = reinterpret_cast<__m256i*>(to.data() + k);
    _mm256_storeu_si256(at, Products::template part_of_x<0>(eight));
    _mm256_storeu_si256(at + stretch256 / 8, Products::template part_of_x<1>(eight));
  }
}

/// Adds the products of one part of a group.
template <class Products, int part, int height, int columns>
[[gnu::always_inline]] LLAMA_AVX2 inline void add_part256(const std::uint32_t* weights, const std::byte* const* x,
                                                          Index group,
                                                          typename Products::Vector (&sum)[height][columns]) {
  __m256i weight[columns];
#pragma GCC unroll 8
  for (int c = 0; c < columns; ++c) {
    const auto* const from = reinterpret_cast<const __m256i*>(weights + group * width + c * 8);
    weight[c] = Products::template part<part>(_mm256_loadu_si256(from));
  }
#pragma GCC unroll 8
  for (int i = 0; i < height; ++i) {
    const __m256i of_row = _mm256_set1_epi32(group_at(x[i] + 4 * (part * stretch256 + group)));
#pragma GCC unroll 8
    for (int c = 0; c < columns; ++c) sum[i][c] = Products::add(sum[i][c], of_row, weight[c]);
  }
}

/// `height` rows times `columns` vectors of outputs along `groups` groups. For each group it fetches a line for each 16
/// outputs, from `fetched` on, `step` bytes apart. Where it is inlined, gcc 12 keeps a sum of 6 rows of bfloat16 in
/// memory.
template <class Products, int height, int columns>
[[gnu::noinline]] LLAMA_AVX2 void pass256(const std::uint32_t* weights, Index groups, const std::byte* const* x,
                                          bool begin, const char* fetched, Index step, typename Products::Sum* sums) {
  typename Products::Vector sum[height][columns];
#pragma GCC unroll 8
  for (int i = 0; i < height; ++i) {
#pragma GCC unroll 8
    for (int c = 0; c < columns; ++c) {
      sum[i][c] = begin ? Products::zero() : Products::load(sums + i * width + c * 8);
    }
  }
  for (Index k = 0; k < groups; ++k) {
    for (int c = 0; c < columns; c += 2) {
      _mm_prefetch(fetched, _MM_HINT_T1);
      fetched += step;
    }
    add_part256<Products, 0>(weights, x, k, sum);
    if constexpr (Products::parts == 2) add_part256<Products, 1>(weights, x, k, sum);
  }
#pragma GCC unroll 8
  for (int i = 0; i < height; ++i) {
#pragma GCC unroll 8
    for (int c = 0; c < columns; ++c) Products::store(sums + i * width + c * 8, sum[i][c]);
  }
}

/// Passes of up to 6 rows over 16 outputs, of 1 or 2 rows over 32: their sums fit the 16 registers. A few rows take two
/// passes where a single one would wait for memory and then compute, in place of both at once.
template <class Products>
void kernel256(const void* panel, Index groups, const std::byte* x, Index x_stride, Index rows, Index first,
               Index count, void* sums) {
  constexpr Index most = 6, line = 64;
  constexpr Index few = Products::parts == 1 ? 6 : 4;  // measured: a second pass takes the parts anew
  const auto* weights = static_cast<const std::uint32_t*>(panel) + first;
  auto* to = static_cast<typename Products::Sum*>(sums);
  const Index passes = rows > 3 && rows <= few ? 2 : (rows + most - 1) / most;
  std::array<StretchOfX, most> split_rows;  // of the rows of a pass, in two parts
  std::array<const std::byte*, most> from;  // what they multiply with: these, or the rows themselves
  for (Index k = 0; k < groups; k += stretch256) {
    const Index stretch_groups = std::min(stretch256, groups - k);
    // The next stretch, or what follows the panel. Of half a panel only its first line is fetched, again and again.
    const char* fetched = reinterpret_cast<const char*>(weights + (k + stretch256) * width);
    const Index step = count == width ? line / passes : 0;
    Index row = 0;
    for (Index pass = 0; pass < passes; ++pass) {
      const Index height = (rows - row + passes - pass - 1) / (passes - pass);
      for (Index i = 0; i < height; ++i) {
        const auto at = static_cast<std::size_t>(i);
        from[at] = x + (row + i) * x_stride + 4 * k;
        if constexpr (Products::parts == 2) {
          split<Products>(from[at], stretch_groups, split_rows[at]);
          from[at] = reinterpret_cast<const std::byte*>(split_rows[at].data());
        }
      }
      const auto run = [&]<int tile>() {
        constexpr int columns = tile <= 2 ? 4 : 2;  // at least 4 sums, which do not wait for each other
        for (Index at = 0; at < count; at += columns * 8) {
          pass256<Products, tile, columns>(weights + k * width + at, stretch_groups, from.data(), k == 0, fetched, step,
                                           to + row * width + at);
          fetched += stretch_groups * step * columns / 2;
        }
      };
      with_height(height, run, std::integer_sequence<int, 1, 2, 3, 4, 5, 6>());
      row += height;
    }
  }
}

template <class Products>
PanelKernel kernel512_of(Index first_cache) {
  return first_cache >= 48 * 1024 ? kernel512<Products, Cache::first> : kernel512<Products, Cache::second>;
}

bool may_use(Isa isa, Isa best) { return isa <= best && usable(isa); }
#endif

// For every processor: vectors that compilers know without its instructions' names.
using Floats = float __attribute__((vector_size(16)));
using Numbers = std::int32_t __attribute__((vector_size(16)));
using Groups = std::uint32_t __attribute__((vector_size(16)));

/// A group is of as many parts as it holds numbers.
struct PlainFloats {
  using Sum = float;
  using Vector = Floats;
  static constexpr int parts = 1;
  template <int>
  static Vector part(Groups floats) {
    return (Vector)floats;
  }
  template <int>
  static Vector part_of_x(Groups floats) {
    return (Vector)floats;
  }
};

struct PlainPairs : PlainFloats {
  static constexpr int parts = 2;
  template <int odd>
  static Vector part(Groups pairs) {
    return (Vector)(odd == 0 ? pairs << 16 : pairs & 0xffff0000u);
  }
  template <int odd>
  static Vector part_of_x(Groups pairs) {
    return part<odd>(pairs);
  }
};

struct PlainFours {
  using Sum = std::int32_t;
  using Vector = Numbers;
  static constexpr int parts = 4;
  template <int place>
  static Vector part(Groups fours) {
    return (Vector)(fours << (24 - 8 * place)) >> 24;
  }
  template <int place>
  static Vector part_of_x(Groups fours) {
    return (Vector)(fours >> (8 * place) & 0xffu);
  }
};

/// `height` rows times 16 outputs.
template <class Products, int height>
void plain_pass(const std::uint32_t* weights, Index groups, const std::byte* x, Index x_stride,
                typename Products::Sum* sums) {
  constexpr int columns = 4;
  typename Products::Vector sum[height][columns] = {};
  for (Index k = 0; k < groups; ++k) {
    Groups weight[columns];
    std::memcpy(weight, weights + k * width, sizeof(weight));
    const auto add = [&]<int part>() {
#pragma GCC unroll 8
      for (int i = 0; i < height; ++i) {
        const auto group = static_cast<std::uint32_t>(group_at(x + i * x_stride + 4 * k));
        const auto of_row = Products::template part_of_x<part>(Groups{} + group);
#pragma GCC unroll 8
        for (int c = 0; c < columns; ++c) sum[i][c] += of_row * Products::template part<part>(weight[c]);
      }
    };
    [&]<int... part>(std::integer_sequence<int, part...>) { (add.template operator()<part>(), ...); }
    (std::make_integer_sequence<int, Products::parts>());
  }
  for (int i = 0; i < height; ++i) std::memcpy(sums + i * width, sum[i], sizeof(sum[i]));
}

template <class Products>
void plain_kernel(const void* panel, Index groups, const std::byte* x, Index x_stride, Index rows, Index first,
                  Index count, void* sums) {
  constexpr Index most = 4;
  const auto* const weights = static_cast<const std::uint32_t*>(panel) + first;
  auto* const to = static_cast<typename Products::Sum*>(sums);
  for (Index output = 0; output < count; output += 16) {
    for (Index row = 0; row < rows; row += most) {
      const auto run = [&]<int height>() {
        plain_pass<Products, height>(weights + output, groups, x + row * x_stride, x_stride, to + row * width + output);
      };
      with_height(std::min(most, rows - row), run, std::integer_sequence<int, 1, 2, 3, 4>());
    }
  }
}

}  // namespace

Index first_cache_bytes() {
#ifdef _SC_LEVEL1_DCACHE_SIZE
  static const Index bytes = sysconf(_SC_LEVEL1_DCACHE_SIZE);
  return bytes;
#else
  return 0;
#endif
}

template <>
PanelKernel panel_kernel<float>([[maybe_unused]] Isa best, [[maybe_unused]] Index first_cache) {
#ifdef __x86_64__
  if (may_use(Isa::avx512, best)) return kernel512_of<Floats512>(first_cache);
  if (may_use(Isa::avx2, best)) return kernel256<Floats256>;
#endif
  return plain_kernel<PlainFloats>;
}
template <>
PanelKernel panel_kernel<Eigen::bfloat16>([[maybe_unused]] Isa best, [[maybe_unused]] Index first_cache) {
#ifdef __x86_64__
  if (may_use(Isa::avx512_bf16, best)) return kernel512_of<Pairs512>(first_cache);
  if (may_use(Isa::avx512, best)) return kernel512_of<WidenedPairs512>(first_cache);
  if (may_use(Isa::avx2, best)) return kernel256<Pairs256>;
#endif
  return plain_kernel<PlainPairs>;
}
template <>
PanelKernel panel_kernel<std::int8_t>([[maybe_unused]] Isa best, [[maybe_unused]] Index first_cache) {
#ifdef __x86_64__
  if (may_use(Isa::avx512_vnni, best)) return kernel512_of<Fours512>(first_cache);
  if (may_use(Isa::avx2, best)) return kernel256<Fours256>;
#endif
  return plain_kernel<PlainFours>;
}

}  // namespace llama
