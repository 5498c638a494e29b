#include "examples/llama/kernels/cpu/attention_blocks.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <numbers>
#include <type_traits>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "examples/llama/kernels/cpu/block_kernels.hpp"
#include "examples/llama/kernels/cpu/block_products.hpp"
#include "examples/llama/kernels/cpu/rounding.hpp"

// The keys of a head go by in blocks from the first one on, whatever the rows see, so that the sums of a row have the
// same order in every call. A block of keys and values is gathered once for several parts of queries; it, its scores
// and the parts' sums stay in the second-level cache. A part goes no further than its last row sees.

namespace llama {
namespace {

constexpr Index part_queries = 128;
constexpr Index max_parts = 4;
constexpr Index key_step = 64;  ///< of the keys of a part's last block: each number of keys is a primitive of oneDNN

/// Rows of a part of `count` queries: doubled from `least` on, since each number is a primitive of oneDNN.
constexpr Index part_rows(Index count, Index least) {
  Index rows = least;
  while (rows < count) rows *= 2;
  return rows;
}

/// A thread's part of the scratch memory.
template <class S>
struct Buffers {
  Buffers(Index width, float* memory) : next_(memory) {
    queries = take<S>(max_parts * part_queries * width);
    keys = take<S>((max_block_keys + block_step) * width);
    values = take<S>(max_block_keys * (width + block_step));
    key_rows = take<S>(block_step * width);
    weights = take<S>(part_queries * max_block_keys);
    scores = std::is_same_v<S, float> ? reinterpret_cast<float*>(weights) : take<float>(part_queries * max_block_keys);
    added = take<float>(part_queries * width);
    sums = take<float>(max_parts * part_queries * width);
    maximum = take<float>(max_parts * part_queries);
    total = take<float>(max_parts * part_queries);
  }

  /// No less than all of them hold.
  static Index floats(Index width) {
    return 2 * max_parts * part_queries * (width + 1) + (2 * max_block_keys + part_queries) * width +
           block_step * (2 * width + max_block_keys) + 2 * part_queries * max_block_keys;
  }

  S *queries, *keys, *values, *key_rows, *weights;
  float *scores, *added, *sums, *maximum, *total;

 private:
  template <class E>
  E* take(Index count) {
    float* const taken = next_;
    next_ += count * static_cast<Index>(sizeof(E)) / static_cast<Index>(sizeof(float));
    return reinterpret_cast<E*>(taken);
  }
  float* next_;
};

/// Up to `max_parts` parts of queries of one key/value head.
template <class T, class Products>
class Block {
  using S = typename Products::Element;

 public:
  Block(const AttentionTask<T>& task, Index kv_head, Index first, Index count, const Buffers<S>& memory)
      : task_(task),
        kv_head_(kv_head),
        first_(first),
        count_(count),
        width_(round_up(task.shape.head_dim, block_step)),
        memory_(memory) {}

  void run() {
    const Index last_part = (count_ - 1) / part_queries * part_queries;
    const Index rows = last_part + part_rows(count_ - last_part, Products::min_rows);
    for (Index i = 0; i < rows; ++i) {
      if (i < count_) {
        copy(task_.query(kv_head_, first_ + i), memory_.queries + i * width_);
      } else {
        std::fill_n(memory_.queries + i * width_, width_, S(0));
      }
    }
    std::fill_n(memory_.sums, rows * width_, 0.0f);
    std::fill_n(memory_.maximum, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(memory_.total, rows, 0.0f);
    const Index last = task_.limit(first_ + count_ - 1);
    for (Index key = 0; key < last; key += max_block_keys) {
      gather(key, std::min(max_block_keys, last - key));
      for (Index part = 0; part < count_; part += part_queries) {
        attend(part, std::min(part_queries, count_ - part), key);
      }
    }
    store();
  }

 private:
  void copy(const T* from, S* to) const {
    const Index head_dim = task_.shape.head_dim;
    if constexpr (std::is_same_v<T, S>) {
      std::copy_n(from, head_dim, to);
    } else {
      widen(from, head_dim, to);
    }
    std::fill(to + head_dim, to + width_, S(0));
  }

  /// Keys and values of `count` keys; zeros behind them up to a multiple of `key_step`.
  void gather(Index key, Index count) const {
    for (Index i = 0; i < round_up(count, key_step); ++i) {
      S* const values = memory_.values + i * (width_ + Products::padding);
      if (i < count) {
        const Index ahead = task_.offset(kv_head_, std::min(key + i + 8, key + count - 1));
        for (Index k = 0; k < task_.shape.head_dim; k += 64 / static_cast<Index>(sizeof(T))) {
          __builtin_prefetch(task_.cache.keys + ahead + k);
          __builtin_prefetch(task_.cache.values + ahead + k);
        }
        const Index at = task_.offset(kv_head_, key + i);
        copy(task_.cache.values + at, values);
        put_key(task_.cache.keys + at, i);
      } else {
        std::fill_n(values, width_, S(0));
        put_key(nullptr, i);
      }
    }
  }

  /// `key` as row or column i of the keys, zeros for none.
  void put_key(const T* key, Index i) const {
    const Index row = Products::keys_across ? i % block_step : i;
    S* const to = (Products::keys_across ? memory_.key_rows : memory_.keys) + row * width_;
    if (key) {
      copy(key, to);
    } else {
      std::fill_n(to, width_, S(0));
    }
    if constexpr (Products::keys_across) {
      if (row + 1 < block_step) return;
      block_kernels().transpose(block_step, width_, memory_.key_rows, memory_.keys + i - row,
                                max_block_keys + Products::padding);
    }
  }

  /// How many keys of the block from `key` on the first `count` queries need, a multiple of `key_step`.
  Index needed(Index count, Index key) const {
    return round_up(std::clamp<Index>(task_.limit(first_ + count - 1) - key, 0, max_block_keys), key_step);
  }

  /// One block of keys for `count` queries from `part` on; in halves where the first half needs fewer keys.
  void attend(Index part, Index count, Index key) const {
    const Index keys = needed(part + count, key);
    if (keys == 0) return;
    const Index rows = part_rows(count, Products::min_rows);
    if (count > Products::min_part && needed(part + rows / 2, key) < keys) {
      attend(part, rows / 2, key);
      return attend(part + rows / 2, count - rows / 2, key);
    }
    std::array<Index, part_queries> visible{};
    std::array<float, part_queries> correction;
    for (Index i = 0; i < count; ++i) {
      visible[static_cast<std::size_t>(i)] = std::clamp<Index>(task_.limit(first_ + part + i) - key, 0, keys);
    }
    const ScoreBlock block{.rows = rows,
                           .keys = keys,
                           .scores = memory_.scores,
                           .visible = visible.data(),
                           .scale = task_.shape.scale * std::numbers::log2e_v<float>,
                           .maximum = memory_.maximum + part,
                           .total = memory_.total + part,
                           .correction = correction.data()};
    const BlockKernels& kernels = block_kernels();
    Products::score(rows, keys, width_, memory_.queries + part * width_, memory_.keys, memory_.scores);
    if constexpr (std::is_same_v<S, float>) {
      kernels.weigh(block);
      Products::mix(rows, keys, width_, memory_.scores, memory_.values, memory_.added);
    } else {
      kernels.weigh_rounded(block, reinterpret_cast<std::uint16_t*>(memory_.weights));
      Products::mix(rows, keys, width_, memory_.weights, memory_.values, memory_.added);
    }
    kernels.accumulate(block, width_, memory_.added, memory_.sums + part * width_);
  }

  void store() const {
    for (Index i = 0; i < count_; ++i) {
      T* const to = task_.result(kv_head_, first_ + i);
      const float* const from = memory_.sums + i * width_;
      const float factor = 1 / memory_.total[i];
      for (Index k = 0; k < task_.shape.head_dim; ++k) to[k] = round_to<T>(from[k] * factor);
    }
  }

  const AttentionTask<T>& task_;
  Index kv_head_;
  Index first_;
  Index count_;
  Index width_;  ///< of a row in the buffers; zeros behind the head's elements
  Buffers<S> memory_;
};

template <class Products, class T>
void run(lazyllm::cpu::Context& context, const AttentionTask<T>& task) {
  using S = typename Products::Element;
  const Index threads = context.threads();
  const Index width = round_up(task.shape.head_dim, block_step);
  const Index queries = task.query_count();
  const auto blocks_of = [&](Index parts) { return (queries - 1) / (parts * part_queries) + 1; };
  Index parts = max_parts;
  while (parts > 1 && blocks_of(parts) * task.shape.kv_heads < 4 * threads) parts /= 2;
  const Index blocks = blocks_of(parts);
  const Index floats = Buffers<S>::floats(width);
  float* const memory = context.scratch(threads * floats).data();
  std::exception_ptr failure;  // none may leave the parallel region
#pragma omp parallel num_threads(context.threads())
  {
    Index thread = 0;
#ifdef _OPENMP
    thread = omp_get_thread_num();
    const int outer = omp_get_max_threads();
    omp_set_num_threads(1);  // for oneDNN, in this thread
#endif
    const Buffers<S> buffers(width, memory + thread * floats);
    // Head by head, so that the threads share its keys and values in the last cache; long blocks first, so that the
    // threads end together.
#pragma omp for schedule(dynamic)
    for (Index i = 0; i < task.shape.kv_heads * blocks; ++i) {
      const Index first = (blocks - 1 - i % blocks) * parts * part_queries;
      const Index count = std::min(parts * part_queries, queries - first);
      try {
        Block<T, Products>(task, i / blocks, first, count, buffers).run();
      } catch (...) {  // oneDNN has no memory for a primitive
#pragma omp critical
        failure = std::current_exception();
      }
    }
#ifdef _OPENMP
    omp_set_num_threads(outer);
#endif
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

template <class T>
void attend_in_blocks(lazyllm::cpu::Context& context, const AttentionTask<T>& task,
                      [[maybe_unused]] BlockProducts products) {
#ifdef LLAMA_HAS_ONEDNN
  if (products == BlockProducts::automatic) {
    if constexpr (!std::is_same_v<T, float>) {
      if (OneDnnProducts<T>::supported()) return run<OneDnnProducts<T>>(context, task);
    }
    if (OneDnnProducts<float>::supported()) return run<OneDnnProducts<float>>(context, task);
  }
#endif
  run<OwnProducts>(context, task);
}

template void attend_in_blocks(lazyllm::cpu::Context&, const AttentionTask<float>&, BlockProducts);
template void attend_in_blocks(lazyllm::cpu::Context&, const AttentionTask<Eigen::bfloat16>&, BlockProducts);

}  // namespace llama
