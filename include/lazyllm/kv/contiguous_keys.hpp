#pragma once

#include "lazyllm/core/host_device.hpp"
#include "lazyllm/core/positions.hpp"

namespace lazyllm {

/// Keys of one sequence in one layer in a strided array: position p, head h at `data + p * position_stride + h *
/// head_stride`. Trivially copyable.
template <class T>
struct ContiguousKeys {
  using value_type = T;

  const T* data = nullptr;
  Index position_stride = 0;  ///< elements from one token to the next
  Index head_stride = 0;      ///< elements from one key head to the next
  Index heads = 0;            ///< key heads; a divisor of the number of query heads (GQA)

  LAZYLLM_HOST_DEVICE constexpr const T* key(Position position, Index head) const {
    return data + position * position_stride + head * head_stride;
  }
};

}  // namespace lazyllm
