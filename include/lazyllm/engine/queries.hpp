#pragma once

#include <cstdint>
#include <span>

#include "lazyllm/engine/element.hpp"
#include "lazyllm/engine/host_device.hpp"
#include "lazyllm/engine/positions.hpp"

namespace lazyllm {

/// How the scores of several heads, or of several queries, become one.
enum class Reduce : std::uint8_t {
  mean,  ///< of all
  max    ///< the highest
};

/// The attention queries of a batch after RoPE: row r, head h at `data + r * row_stride + h * head_stride`. Row r is
/// row r of the plan. Only the rows of a sequence's last positions are read, as many as its score asks for: where the
/// last n rows of one sequence alone are kept at `kept`, `data` is `kept - (plan.rows() - n) * row_stride`. Of a batch
/// of several sequences Q of all rows must stay, or the block computes the scores itself. Trivially copyable.
template <Element T>
struct QueryRows {
  using value_type = T;  ///< of the elements

  const T* data = nullptr;  ///< row 0, head 0
  Index row_stride = 0;     ///< elements from one row to the next
  Index head_stride = 0;    ///< elements from one head to the next
  Index heads = 0;          ///< query heads; a multiple of the key view's `kv_heads`, neighbouring ones share one
  Index head_dim = 0;       ///< elements of a head
  float scale = 0;          ///< factor of Q*K before the softmax, 1/sqrt(head_dim) in most models; finite and above 0

  /// Pointer to the `[head_dim]` elements of one head of one row.
  LAZYLLM_HOST_DEVICE constexpr const T* query(Index row, Index head) const {
    return data + row * row_stride + head * head_stride;
  }
};

/// The rows of one sequence whose attention makes its scores, how, and where the scores go: what an engine needs to
/// know that computes scores itself.
struct ScoreWindow {
  Index sequence = 0;                ///< number of the sequence in the plan
  Index first_row = 0;               ///< the window is the rows [first_row, first_row + rows) of the batch
  Index rows = 1;                    ///< at least 1; all belong to the sequence
  Reduce over_heads = Reduce::mean;  ///< over the query heads of each row
  Reduce over_rows = Reduce::mean;   ///< then over the rows of the window
  std::span<float> scores = {};      ///< `[keys of the sequence]` output, in the memory of the backend
};

}  // namespace lazyllm
