#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "examples/llama/checkpoint/model_config.hpp"
#include "examples/llama/kernels/kv_view.hpp"
#include "examples/llama/library.hpp"

namespace llama {

/// How much the K/V caches of a decoder hold. Made from a number of tokens where one sequence is all.
struct KvCacheSize {
  /// Throws `std::invalid_argument` unless there is room for a sequence of a token.
  KvCacheSize(Index capacity_, Index sequences_ = 1, Index page_size_ = 0)
      : capacity(capacity_), sequences(sequences_), page_size(page_size_) {
    if (capacity < 1) fail("a KV cache for ", capacity, " tokens, at least 1 is needed");
    if (sequences < 1) fail("KV caches for ", sequences, " sequences, at least 1 is needed");
    if (page_size < 0) fail("KV pages of ", page_size, " tokens, at least 0 is needed");
  }

  Index capacity;   ///< tokens of each sequence
  Index sequences;  ///< that run together
  Index page_size;  ///< tokens in a page, a power of two; 0: each sequence's K/V lie in one piece, as always on the CPU
};

/// K and V of the sequences of a decoder in all layers, in the memory of `Device`: each sequence's in one piece, or in
/// pages of one pool. A token's place is its position. Uninitialised until written. A step may run some of the
/// sequences; at first it runs all.
template <class T, class Device>
class KvCaches {
 public:
  using Context = typename Device::Context;

  /// Throws `std::invalid_argument` for pages on a device that has none, and what `Device::array` throws without
  /// memory.
  KvCaches(Context& context, const ModelConfig& config, const KvCacheSize& size) : kv_heads_(config.kv_heads) {
    const bool paged = size.page_size > 0;
    if (paged && !Device::has_pages) fail("K/V pages of ", size.page_size, " tokens: on the CPU there are no pages");
    const Index page = paged ? size.page_size : size.capacity;
    const Index pages = (size.capacity + page - 1) / page;
    // Head-major, so that the keys of one head are read in one stream.
    KvView<T> view;
    view.position_stride = config.head_dim;
    view.head_stride = page * view.position_stride;
    view.page_stride = config.kv_heads * view.head_stride;
    view.layer_stride = size.sequences * pages * view.page_stride;
    view.capacity = pages * page;
    view.page_size = size.page_size;
    const Index values = config.layers * view.layer_stride;
    memory_ = Device::template array<T>(
        context, 2 * values,
        "K/V of " + std::to_string(size.sequences) + " x " + std::to_string(size.capacity) + " tokens");
    if (paged) {
      // The sequences take turns, as where pages are given out while they grow.
      std::vector<std::int32_t> tables;
      for (Index s = 0; s < size.sequences; ++s) {
        for (Index p = 0; p < pages; ++p) tables.push_back(static_cast<std::int32_t>(p * size.sequences + s));
      }
      page_tables_ = Device::template array<std::int32_t>(context, std::ssize(tables), "page tables");
      Device::upload(context, tables, page_tables_.data());
    }
    for (Index s = 0; s < size.sequences; ++s) {
      view.keys = memory_.data() + (paged ? 0 : s * view.page_stride);
      view.values = view.keys + values;
      if (paged) view.page_table = page_tables_.data() + s * pages;
      all_.push_back(view);
    }
    views_ = all_;
  }

  /// The next steps run these sequences, in this order.
  void use(std::span<const Index> sequences) {
    views_.clear();
    for (const Index s : sequences) views_.push_back(all_[static_cast<std::size_t>(s)]);
  }

  /// One for each sequence of the step.
  const std::vector<KvView<T>>& views() const { return views_; }

  /// The keys of sequence s of the step in a layer, as the library's scoring reads them.
  auto key_view(Index s, Index layer) const {
    return Device::key_view(views_[static_cast<std::size_t>(s)], layer, kv_heads_);
  }

  /// Tokens that each sequence has room for.
  Index capacity() const { return all_.front().capacity; }

  Index bytes() const { return memory_.bytes(); }

 private:
  Index kv_heads_;
  typename Device::template Array<T> memory_;  // all keys, then all values
  typename Device::template Array<std::int32_t> page_tables_;
  std::vector<KvView<T>> all_, views_;  // of all sequences, of those of the step
};

}  // namespace llama
