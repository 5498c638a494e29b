#pragma once

#include <cstdint>
#include <span>

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
  Index head_dim = 0;
  float scale = 1;  ///< factor of the logits, 1/sqrt(head_dim) in most models

  LAZYLLM_HOST_DEVICE constexpr const T* query(Index row, Index head) const {
    return data + row * row_stride + head * head_stride;
  }
};

/// What one sequence of a batch asks of a backend's `attention_scores`: the attention probabilities of some of its
/// rows, mean over the query heads (eq. 1), reduced over these rows. `Keys` is a `KeyView`.
template <class Keys>
struct ScoreTask {
  Index first_row = 0;  ///< the first of these rows in the batch
  Positions limits{};   ///< `[rows]` row first_row + i sees the first `limits[i]` active keys, the others are 0
  Keys keys{};          ///< of the sequence in this layer
  Positions active{};   ///< `[keys]` positions of the active keys
  Reduce reduce = Reduce::mean;
  std::span<float> scores{};  ///< `[keys]` output, in the backend's memory
};

/// The same for one sequence on any backend.
template <class Context, class T, class Keys>
void attention_scores(Context& context, const QueryRows<T>& queries, Index first_row, Positions limits,
                      const Keys& keys, Positions active, Reduce reduce, std::span<float> scores) {
  attention_scores(context, queries, 1,
                   [&](Index) { return ScoreTask<Keys>{first_row, limits, keys, active, reduce, scores}; });
}

}  // namespace lazyllm
