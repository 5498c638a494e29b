#pragma once

#include <cstdint>

#include "lazyllm/engine/element.hpp"
#include "lazyllm/engine/host_device.hpp"
#include "lazyllm/engine/positions.hpp"

namespace lazyllm {

/// K of one sequence in one layer in pages of `page_size` tokens: position p lies in page `page_table[p / page_size]`.
/// Trivially copyable.
template <Element T>
struct PagedKeys {
  using value_type = T;  ///< of the elements

  const T* data = nullptr;                   ///< page 0
  const std::int32_t* page_table = nullptr;  ///< page numbers in order of position; in the backend's memory
  Index page_size = 0;                       ///< tokens in a page
  Index page_stride = 0;                     ///< elements from one page to the next
  Index position_stride = 0;                 ///< elements from one token of a page to the next
  Index head_stride = 0;                     ///< elements from one head to the next
  /// A divisor of the number of query heads. Query head h reads head h / (heads / kv_heads) of K (GQA).
  Index kv_heads = 0;

  /// Pointer to the `[head_dim]` elements of one head of one token.
  LAZYLLM_HOST_DEVICE constexpr const T* key(Position position, Index head) const {
    const auto size = static_cast<std::uint32_t>(page_size);  // divides faster than 64 bits
    const auto place = static_cast<std::uint32_t>(position);
    return data + page_table[place / size] * page_stride + static_cast<Index>(place % size) * position_stride +
           head * head_stride;
  }
};

}  // namespace lazyllm
