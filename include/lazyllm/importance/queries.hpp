#pragma once

#include <cstdint>

#include "lazyllm/core/host_device.hpp"
#include "lazyllm/core/positions.hpp"

namespace lazyllm {

/// How the scores of several queries become one.
enum class Reduce : std::uint8_t { mean, max };

/// The attention queries of a batch after RoPE: row r, head h at `data + r * row_stride + h * head_stride`. Row r is
/// row r of the plan. Trivially copyable.
template <class T>
struct QueryRows {
  using value_type = T;

  const T* data = nullptr;
  Index row_stride = 0;   ///< elements from one row to the next
  Index head_stride = 0;  ///< elements from one head to the next
  Index heads = 0;
  Index head_width = 0;
  float scale = 1;  ///< factor of the logits, 1/sqrt(head_width) in most models

  LAZYLLM_HOST_DEVICE constexpr const T* query(Index row, Index head) const {
    return data + row * row_stride + head * head_stride;
  }
};

}  // namespace lazyllm
