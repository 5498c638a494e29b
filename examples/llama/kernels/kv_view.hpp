#pragma once

#include <cstdint>

#include "examples/llama/library.hpp"

namespace llama {

/// Where K and V of one sequence lie, in all layers: contiguous, or in pages that may be anywhere behind `keys`. A
/// value lies at the same offset from `values` as its key from `keys`. Strides count elements. Trivially copyable;
/// nothing is owned.
template <class T>
struct KvView {
  T* keys = nullptr;  ///< layer 0, head 0 of token 0, or of the first token of page 0
  T* values = nullptr;
  Index layer_stride = 0;
  Index head_stride = 0;
  Index position_stride = 0;
  Index capacity = 0;                        ///< tokens that there is room for
  const std::int32_t* page_table = nullptr;  ///< pages in order of position, beside the K/V; null: contiguous
  Index page_size = 0;                       ///< tokens in a page, a power of two
  Index page_stride = 0;

  bool operator==(const KvView&) const = default;
};

}  // namespace llama
