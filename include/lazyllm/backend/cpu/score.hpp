#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <type_traits>

#include "lazyllm/backend/cpu/context.hpp"
#include "lazyllm/backend/operations.hpp"
#include "lazyllm/backend/score_order.hpp"

namespace lazyllm::cpu {

namespace detail {

/// Eigen's own conversion of bfloat16 keeps compilers from vectorising.
inline float to_float(Eigen::bfloat16 value) { return std::bit_cast<float>(std::uint32_t{value.value} << 16); }

template <class T>
float to_float(T value) {
  return static_cast<float>(value);
}

using Lanes = Eigen::Array<float, 16, 1>;

template <class T>
Lanes load(const T* from) {
  if constexpr (std::is_same_v<T, float>) {
    return Eigen::Map<const Lanes>(from);
  } else {
    Lanes lanes;
    for (Index lane = 0; lane < lanes.size(); ++lane) lanes[lane] = to_float(from[lane]);
    return lanes;
  }
}

/// a . b in float of `count` rows a, one after the other. The lanes have a fixed number and order, so that the bits
/// depend neither on where a and b lie nor on `count`.
template <int count, class T>
std::array<float, count> dots(const float* a, const T* b, Index head_dim) {
  constexpr Index size = Lanes::SizeAtCompileTime;
  Lanes lanes[count];
  for (Lanes& sum : lanes) sum.setZero();
  Index j = 0;
  for (; j + size <= head_dim; j += size) {
    const Lanes element = load(b + j);
    for (int i = 0; i < count; ++i) lanes[i] += load(a + i * head_dim + j) * element;
  }
  std::array<float, count> sums;
  for (int i = 0; i < count; ++i) sums[static_cast<std::size_t>(i)] = lanes[i].sum();
  for (; j < head_dim; ++j) {
    for (int i = 0; i < count; ++i) sums[static_cast<std::size_t>(i)] += a[i * head_dim + j] * to_float(b[j]);
  }
  return sums;
}

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
  const std::span<const Position> limits = task.limits;
  const Positions keys = task.keys;
  const Keys& key_view = task.key_view;
  const Reduce over_heads = task.over_heads;
  const Reduce over_rows = task.over_rows;
  const std::span<float> scores = task.scores;
  const Index count = std::ssize(keys);
  const Index heads = queries.heads;
  const Index group = heads / key_view.kv_heads;
  // Each head's row begins on a packet boundary: what Eigen vectorises, and so the result's bits, must not depend on
  // where the scratch memory happens to lie. The odd number of packets keeps the rows out of each other's cache sets.
  constexpr Index packet = 16;
  const Index stride = ((count + packet - 1) / packet | 1) * packet;
  const std::span<float> scratch = context.scratch(heads * (stride + queries.head_dim + 1));
  float* const weights = scratch.data();
  float* const query = weights + heads * stride;
  float* const factors = query + heads * queries.head_dim;

  // Of the one row of a decode step, one thread has the scores before a second one is awake.
  constexpr Index grain = 256, little = Index{1} << 22;
  const bool alone = std::ssize(limits) * count * heads * queries.head_dim <= little;
  const auto for_chunks = [&](Index all, Index size, const auto& body) {
    alone ? context.in_chunks(all, size, body) : context.for_chunks(all, size, body);
  };
  const float head_count = over_heads == Reduce::mean ? static_cast<float>(heads) : 1;
  bool finite = true;
  for (std::size_t r = 0; r < limits.size(); ++r) {
    const Index row = task.first_row + static_cast<Index>(r);
    const Index visible = limits[r];
    for (Index head = 0; head < heads; ++head) {
      std::transform(queries.query(row, head), queries.query(row, head) + queries.head_dim,
                     query + head * queries.head_dim, to_float<T>);
    }
    for_chunks(visible, grain, [&](Index first, Index last) {
      for (Index i = first; i < last; ++i) {
        for (Index kv_head = 0; kv_head < key_view.kv_heads; ++kv_head) {
          const auto* key = key_view.key(keys[lazyllm::detail::to_size(i)], kv_head);
          const auto some = [&]<int number>(Index head, std::integral_constant<int, number>) {
            const auto sums = dots<number>(query + head * queries.head_dim, key, queries.head_dim);
            for (const float sum : sums) weights[head++ * stride + i] = queries.scale * sum;
          };
          Index head = kv_head * group;
          const Index end = head + group;
          for (; end - head >= 4; head += 4) some(head, std::integral_constant<int, 4>());
          if (end - head == 3) some(head, std::integral_constant<int, 3>());
          if (end - head == 2) some(head, std::integral_constant<int, 2>());
          if (end - head == 1) some(head, std::integral_constant<int, 1>());
        }
      }
    });
    for_chunks(heads, 1, [&](Index first, Index last) {
      for (Index head = first; head < last; ++head) {
        Eigen::Map<Eigen::ArrayXf, Eigen::AlignedMax> weight(weights + head * stride, visible);
        const bool good = all_finite(weight.data(), visible);
        weight = (weight - weight.maxCoeff()).exp();
        factors[head] = good ? 1 / (weight.sum() * head_count) : 0;
      }
    });
    finite &= std::find(factors, factors + heads, 0.0F) == factors + heads;
    const float share = over_rows == Reduce::mean ? 1 / static_cast<float>(limits.size()) : 1;
    for_chunks(count, grain, [&](Index first, Index last) {
      // Plain loops: every element takes the same steps, whether a compiler vectorises it or not.
      float probability[grain] = {};
      const Index seen = std::min(last, visible) - first;
      for (Index head = 0; head < heads; ++head) {
        const float* const weight = weights + head * stride + first;
        if (over_heads == Reduce::mean) {
          for (Index i = 0; i < seen; ++i) probability[i] += factors[head] * weight[i];
        } else {
          for (Index i = 0; i < seen; ++i) probability[i] = std::max(probability[i], factors[head] * weight[i]);
        }
      }
      float* const score = scores.data() + first;
      if (r == 0) std::fill_n(score, last - first, 0.0F);
      for (Index i = 0; i < last - first; ++i) {
        score[i] = over_rows == Reduce::mean ? score[i] + share * probability[i]
                                             : lazyllm::detail::higher(score[i], probability[i]);
      }
    });
  }
  if (!finite) std::ranges::fill(scores, std::bit_cast<float>(0x7fc00000U));
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
