#pragma once

#include <memory>

#include "lazyllm/core/positions.hpp"
#include "lazyllm/kv/contiguous_keys.hpp"

namespace lazyllm::llama {

/// K and V of one sequence in all layers, a token's place being its position. Uninitialised until written.
template <class T>
class KvCache {
 public:
  KvCache(Index layers, Index kv_heads, Index head_width, Index capacity)
      : kv_heads_(kv_heads),
        head_width_(head_width),
        capacity_(capacity),
        layer_size_(kv_heads * capacity * head_width),
        bytes_(2 * layers * layer_size_ * static_cast<Index>(sizeof(T))),
        keys_(std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(layers * layer_size_))),
        values_(std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(layers * layer_size_))) {}

  T* key(Index layer, Position position, Index head) { return keys_.get() + offset(layer, position, head); }
  T* value(Index layer, Position position, Index head) { return values_.get() + offset(layer, position, head); }

  /// The keys of a layer as the library's scoring reads them.
  ContiguousKeys<T> keys(Index layer) const {
    return {keys_.get() + layer * layer_size_, head_width_, capacity_ * head_width_, kv_heads_};
  }

  Index capacity() const { return capacity_; }  ///< tokens
  Index bytes() const { return bytes_; }
  Index position_stride() const { return head_width_; }          ///< elements from one token to the next
  Index head_stride() const { return capacity_ * head_width_; }  ///< elements from one head to the next

 private:
  // Head-major, so that the keys of one head are read in one stream.
  Index offset(Index layer, Position position, Index head) const {
    return layer * layer_size_ + (head * capacity_ + position) * head_width_;
  }

  Index kv_heads_;
  Index head_width_;
  Index capacity_;
  Index layer_size_;
  Index bytes_;
  std::unique_ptr<T[]> keys_;
  std::unique_ptr<T[]> values_;
};

}  // namespace lazyllm::llama
