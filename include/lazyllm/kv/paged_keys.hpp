#pragma once

#include <cstdint>

#include "lazyllm/core/host_device.hpp"
#include "lazyllm/core/positions.hpp"

namespace lazyllm {

/// Keys of one sequence in one layer in pages of `page_size` tokens: position p lies in page `page_table[p /
/// page_size]`. Trivially copyable.
template <class T>
struct PagedKeys {
  using value_type = T;

  const T* data = nullptr;                   ///< page 0
  const std::int32_t* page_table = nullptr;  ///< page numbers in order of position; in the backend's memory
  Index page_size = 0;                       ///< tokens in a page
  Index page_stride = 0;                     ///< elements from one page to the next
  Index position_stride = 0;                 ///< elements from one token of a page to the next
  Index head_stride = 0;                     ///< elements from one key head to the next
  Index heads = 0;                           ///< key heads; a divisor of the number of query heads (GQA)

  LAZYLLM_HOST_DEVICE constexpr const T* key(Position position, Index head) const {
    return data + page_table[position / page_size] * page_stride + position % page_size * position_stride +
           head * head_stride;
  }
};

}  // namespace lazyllm
