#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "lazyllm/backend/cpu/context.hpp"
#include "lazyllm/backend/cpu/key_products.hpp"
#include "lazyllm/backend/operations.hpp"
#include "lazyllm/backend/score_order.hpp"

namespace lazyllm::cpu {

namespace detail {

/// Whether all numbers are finite.
inline bool all_finite(const float* numbers, Index count) {
  std::uint32_t highest = 0;
  for (Index i = 0; i < count; ++i) highest = std::max(highest, std::bit_cast<std::uint32_t>(numbers[i]) & 0x7fffffffU);
  return highest < 0x7f800000U;
}

/// The scores of one sequence. A number that is not finite in what is read makes all of them NaN: `exp` and `maxCoeff`
/// need not pass it on where the host is compiled with -ffast-math.
template <class T, class Keys>
void score_one(Context& context, const QueryRows<T>& queries, const ScoreTask<Keys>& task) {
  const Index count = std::ssize(task.keys), all_rows = std::ssize(task.limits);
  const Index heads = queries.heads, head_dim = queries.head_dim;
  const Index group = heads / task.key_view.kv_heads;
  const Reduce over_heads = task.over_heads, over_rows = task.over_rows;
  // The weights of one query and all keys begin on a packet boundary: what Eigen vectorises, and so the result's bits,
  // must not depend on where the scratch memory happens to lie. The odd number of packets keeps them out of each
  // other's cache sets.
  const Index stride = ((count + key_lanes - 1) / key_lanes | 1) * key_lanes;
  // Rows at a time share the work on the keys, as long as they and their weights stay in a cache.
  constexpr Index most_weights = Index{1} << 20;
  const Index most_rows = std::clamp<Index>(most_weights / (heads * (stride + head_dim + 1)), 1, all_rows);
  const Index most_queries = most_rows * heads;
  const std::span<float> scratch = context.scratch(most_queries * (stride + head_dim + 1));
  float* const weights = scratch.data();
  float* const query_rows = weights + most_queries * stride;
  float* const factors = query_rows + most_queries * head_dim;

  // Of the one row of a decode step, one thread has the scores before a second one is awake.
  constexpr Index grain = 256, little = Index{1} << 22;
  static_assert(grain % key_lanes == 0);  // a chunk writes its own products alone
  const bool alone = all_rows * count * heads * head_dim <= little;
  const auto for_chunks = [&](Index all, Index size, const auto& body) {
    alone ? context.in_chunks(all, size, body) : context.for_chunks(all, size, body);
  };
  const float head_count = over_heads == Reduce::mean ? static_cast<float>(heads) : 1;
  const float share = over_rows == Reduce::mean ? 1 / static_cast<float>(all_rows) : 1;
  bool finite = true;
  for (Index begin = 0; begin < all_rows; begin += most_rows) {
    const Index rows = std::min(most_rows, all_rows - begin);
    const std::span<const Position> limits =
        task.limits.subspan(lazyllm::detail::to_size(begin), lazyllm::detail::to_size(rows));
    // Query number (kv_head * rows + row) * group + i: those that share a key head lie together.
    const auto number_of = [&](Index head, Index row) { return (head / group * rows + row) * group + head % group; };
    for (Index row = 0; row < rows; ++row) {
      for (Index head = 0; head < heads; ++head) {
        const T* const query = queries.query(task.first_row + begin + row, head);
        std::transform(query, query + head_dim, query_rows + number_of(head, row) * head_dim,
                       [&](T element) { return queries.scale * to_float(element); });
      }
    }
    for_chunks(std::ranges::max(limits), grain, [&](Index first, Index last) {
      const Positions keys = task.keys.subspan(lazyllm::detail::to_size(first), lazyllm::detail::to_size(last - first));
      multiply_keys(query_rows, rows * group, head_dim, task.key_view, keys, weights + first, stride);
    });
    for_chunks(rows * heads, 1, [&](Index first, Index last) {
      for (Index query = first; query < last; ++query) {
        const Index visible = limits[lazyllm::detail::to_size(query / group % rows)];
        Eigen::Map<Eigen::ArrayXf, product_alignment> weight(weights + query * stride, visible);
        const bool good = all_finite(weight.data(), visible);
        weight = (weight - weight.maxCoeff()).exp();
        factors[query] = good ? 1 / (weight.sum() * head_count) : 0;
      }
    });
    finite &= std::find(factors, factors + rows * heads, 0.0F) == factors + rows * heads;
    for_chunks(count, grain, [&](Index first, Index last) {
      // Plain loops: every element takes the same steps, whether a compiler vectorises it or not.
      float* const score = task.scores.data() + first;
      if (begin == 0) std::fill_n(score, last - first, 0.0F);
      for (Index row = 0; row < rows; ++row) {
        float probability[grain] = {};
        const Index seen = std::min<Index>(last, limits[lazyllm::detail::to_size(row)]) - first;
        for (Index head = 0; head < heads; ++head) {
          const Index query = number_of(head, row);
          const float* const weight = weights + query * stride + first;
          if (over_heads == Reduce::mean) {
            for (Index i = 0; i < seen; ++i) probability[i] += factors[query] * weight[i];
          } else {
            for (Index i = 0; i < seen; ++i) probability[i] = std::max(probability[i], factors[query] * weight[i]);
          }
        }
        for (Index i = 0; i < last - first; ++i) {
          score[i] = over_rows == Reduce::mean ? score[i] + share * probability[i]
                                               : lazyllm::detail::higher(score[i], probability[i]);
        }
      }
    });
  }
  if (!finite) std::ranges::fill(task.scores, std::bit_cast<float>(0x7fc00000U));
}

}  // namespace detail

/// Computes the scores of `count` sequences; `task_of(i)` is the `ScoreTask` of the i-th. `queries` is Q of the whole
/// batch.
template <class T, class TaskOf>
void attention_scores(Context& context, const QueryRows<T>& queries, Index count, const TaskOf& task_of) {
  for (Index i = 0; i < count; ++i) detail::score_one(context, queries, task_of(i));
}

/// Does all `tasks`.
inline void pool_scores(Context& context, std::span<const PoolTask> tasks) {
  for (const PoolTask& task : tasks) {
    if (task.scores.empty()) continue;
    const Index count = std::ssize(task.scores);
    const Index pooling = std::min(task.pooling, 2 * count - 1);
    // Entry i becomes the highest of the `span` sort keys from i on, the span doubling. Scores that are not finite and
    // places outside have the lowest key.
    const std::span<std::uint32_t> highest = context.scratch<std::uint32_t>(count + pooling - 1);
    std::ranges::fill(highest, 0U);
    for (Index i = 0; i < count; ++i) {
      const float score = task.scores[lazyllm::detail::to_size(i)];
      if (!lazyllm::detail::is_finite(score)) continue;
      highest[lazyllm::detail::to_size(i + pooling / 2)] = lazyllm::detail::sort_key(score);
    }
    Index span = 1;
    for (; 2 * span <= pooling; span *= 2) {
      const std::uint32_t* const ahead = highest.data() + span;
      for (Index i = 0; i < std::ssize(highest) - span; ++i) {
        highest[lazyllm::detail::to_size(i)] = std::max(highest[lazyllm::detail::to_size(i)], ahead[i]);
      }
    }
    const std::uint32_t* const ahead = highest.data() + pooling - span;
    for (std::size_t i = 0; i < task.scores.size(); ++i) {
      const float score = task.scores[i];
      const float pooled = lazyllm::detail::score_of(std::max(highest[i], ahead[i]));
      task.pooled[i] = lazyllm::detail::is_finite(score) ? pooled : score;
    }
  }
}

/// Adds `scores` to `sums`, or sets `sums` to them if `first`, and copies the sums back. All `[keys]`.
inline void accumulate_scores(Context&, std::span<float> scores, std::span<float> sums, bool first) {
  for (std::size_t i = 0; i < scores.size(); ++i) {
    sums[i] = first ? scores[i] : sums[i] + scores[i];
    scores[i] = sums[i];
  }
}

}  // namespace lazyllm::cpu
