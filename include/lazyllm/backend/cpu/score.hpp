#pragma once

#include <Eigen/Core>
#include <span>

#include "lazyllm/backend/cpu/context.hpp"
#include "lazyllm/importance/attention_score.hpp"
#include "lazyllm/importance/queries.hpp"

namespace lazyllm::cpu {

namespace detail {

template <class T>
float dot(const T* a, const T* b, Index width) {
  using Row = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>;
  return (Row(a, width).template cast<float>() * Row(b, width).template cast<float>()).sum();
}

}  // namespace detail

/// Attention probabilities of the last rows of a sequence, mean over the query heads (eq. 1), reduced over these rows.
/// \param queries    Q of the whole batch
/// \param first_row  the first of the rows in the batch
/// \param limits     `[rows]` row first_row + i sees the first `limits[i]` of the active keys; the others have
/// probability 0 \param keys       a `KeyView` of the sequence in this layer \param active     `[keys]` positions of
/// the active keys \param scores     `[keys]` output
template <class T, class Keys>
void attention_scores(Context& context, const QueryRows<T>& queries, Index first_row, Positions limits,
                      const Keys& keys, Positions active, Reduce reduce, std::span<float> scores) {
  const Index count = std::ssize(active);
  const Index heads = queries.heads;
  const Index group = heads / keys.heads;
  // Each head's row begins on a packet boundary: what Eigen vectorises, and so the result's bits, must not depend on
  // where the scratch memory happens to lie.
  const Index stride = (count + 15) / 16 * 16;
  const std::span<float> weights = context.scratch(heads * stride);

  constexpr Index grain = 256;
  for (std::size_t r = 0; r < limits.size(); ++r) {
    const Index row = first_row + static_cast<Index>(r);
    const Index visible = limits[r];
    context.for_chunks(visible, grain, [&](Index first, Index last) {
      for (Index i = first; i < last; ++i) {
        for (Index kv_head = 0; kv_head < keys.heads; ++kv_head) {
          const T* key = keys.key(active[static_cast<std::size_t>(i)], kv_head);
          for (Index head = kv_head * group; head < (kv_head + 1) * group; ++head) {
            weights[static_cast<std::size_t>(head * stride + i)] =
                queries.scale * detail::dot(queries.query(row, head), key, queries.head_width);
          }
        }
      }
    });
    context.for_chunks(heads, 1, [&](Index first, Index last) {
      for (Index head = first; head < last; ++head) {
        Eigen::Map<Eigen::ArrayXf, Eigen::AlignedMax> weight(weights.data() + head * stride, visible);
        weight = (weight - weight.maxCoeff()).exp();
        weight *= 1 / (weight.sum() * static_cast<float>(heads));
      }
    });
    const float share = reduce == Reduce::mean ? 1 / static_cast<float>(limits.size()) : 1;
    context.for_chunks(count, grain, [&](Index first, Index last) {
      for (Index i = first; i < last; ++i) {
        float probability = 0;
        if (i < visible) {
          for (Index head = 0; head < heads; ++head)
            probability += weights[static_cast<std::size_t>(head * stride + i)];
        }
        float& score = scores[static_cast<std::size_t>(i)];
        if (r == 0) score = 0;
        // The product lets a NaN through the maximum, so that it is reported and not lost.
        score = reduce == Reduce::mean ? score + share * probability : std::max(score, probability) + 0 * probability;
      }
    });
  }
}

/// Adds `scores` to `sums`, or sets `sums` to them if `first`, and copies the sums back. All `[keys]`.
inline void accumulate_scores(Context&, std::span<float> scores, std::span<float> sums, bool first) {
  for (std::size_t i = 0; i < scores.size(); ++i) {
    sums[i] = first ? scores[i] : sums[i] + scores[i];
    scores[i] = sums[i];
  }
}

/// Copies `scores[kept[i]]` to `target[i]`.
inline void gather_scores(Context&, std::span<const float> scores, std::span<const Index> kept,
                          std::span<float> target) {
  for (std::size_t i = 0; i < kept.size(); ++i) target[i] = scores[static_cast<std::size_t>(kept[i])];
}

/// Gives every key a number that depends on the seed and its position only.
inline void random_scores(Context&, std::uint64_t seed, Positions active, std::span<float> scores) {
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = random_score(seed, active[i]);
}

/// Gives every key the highest score among the `width` (odd) keys around it in the order of the active set.
inline void pool_scores(Context& context, Index width, std::span<float> scores) {
  const std::span<float> unpooled = context.scratch(std::ssize(scores));
  std::copy(scores.begin(), scores.end(), unpooled.begin());
  const Index count = std::ssize(scores);
  for (Index i = 0; i < count; ++i) {
    const auto first = unpooled.begin() + std::max<Index>(0, i - width / 2);
    const auto last = unpooled.begin() + std::min(count, i + width / 2 + 1);
    float& score = scores[static_cast<std::size_t>(i)];
    score = *std::max_element(first, last) + 0 * score;  // a NaN stays one
  }
}

}  // namespace lazyllm::cpu
