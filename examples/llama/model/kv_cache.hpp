#pragma once

#include <memory>

#include "examples/llama/library.hpp"

namespace llama {

/// What the caches of a decoder have room for. Made from a number of tokens where one sequence is all.
struct KvRoom {
  /// Throws `std::invalid_argument` unless there is room for a sequence of a token.
  KvRoom(Index capacity_, Index sequences_ = 1, Index page_size_ = 0)
      : capacity(capacity_), sequences(sequences_), page_size(page_size_) {
    if (capacity < 1) fail("a KV cache for ", capacity, " tokens, at least 1 is needed");
    if (sequences < 1) fail("KV caches for ", sequences, " sequences, at least 1 is needed");
    if (page_size < 0) fail("KV pages of ", page_size, " tokens, at least 0 is needed");
  }

  Index capacity;   ///< tokens of each sequence
  Index sequences;  ///< that run together
  Index page_size;  ///< tokens in a page, a power of two; 0: each sequence's K/V lie in one piece, as always on the CPU
};

/// K and V of one sequence in all layers, a token's place being its position. Uninitialised until written.
template <class T>
class KvCache {
 public:
  KvCache(Index layers, Index kv_heads, Index head_dim, Index capacity)
      : kv_heads_(kv_heads),
        head_dim_(head_dim),
        capacity_(capacity),
        layer_size_(kv_heads * capacity * head_dim),
        bytes_(2 * layers * layer_size_ * static_cast<Index>(sizeof(T))),
        keys_(std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(layers * layer_size_))),
        values_(std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(layers * layer_size_))) {}

  T* key(Index layer, Position position, Index head) { return keys_.get() + offset(layer, position, head); }
  T* value(Index layer, Position position, Index head) { return values_.get() + offset(layer, position, head); }

  /// The keys of a layer as the library's scoring reads them.
  lazyllm::ContiguousKeys<T> keys(Index layer) const {
    return {keys_.get() + layer * layer_size_, head_dim_, capacity_ * head_dim_, kv_heads_};
  }

  Index capacity() const { return capacity_; }  ///< tokens
  Index bytes() const { return bytes_; }
  Index position_stride() const { return head_dim_; }          ///< elements from one token to the next
  Index head_stride() const { return capacity_ * head_dim_; }  ///< elements from one head to the next

 private:
  // Head-major, so that the keys of one head are read in one stream.
  Index offset(Index layer, Position position, Index head) const {
    return layer * layer_size_ + (head * capacity_ + position) * head_dim_;
  }

  Index kv_heads_;
  Index head_dim_;
  Index capacity_;
  Index layer_size_;
  Index bytes_;
  std::unique_ptr<T[]> keys_;
  std::unique_ptr<T[]> values_;
};

}  // namespace llama
