#pragma once

#include "lazyllm/engine/element.hpp"
#include "lazyllm/engine/host_device.hpp"
#include "lazyllm/engine/positions.hpp"

namespace lazyllm {

/// K of one sequence in one layer in a strided array: position p, head h at `data + p * position_stride + h *
/// head_stride`. Trivially copyable.
template <Element T>
struct ContiguousKeys {
  using value_type = T;  ///< of the elements

  const T* data = nullptr;    ///< position 0, head 0
  Index position_stride = 0;  ///< elements from one token to the next
  Index head_stride = 0;      ///< elements from one head to the next
  /// A divisor of the number of query heads. Query head h reads head h / (heads / kv_heads) of K (GQA).
  Index kv_heads = 0;

  /// Pointer to the `[head_dim]` elements of one head of one token.
  LAZYLLM_HOST_DEVICE constexpr const T* key(Position position, Index head) const {
    return data + position * position_stride + head * head_stride;
  }
};

}  // namespace lazyllm
