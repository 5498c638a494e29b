#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "lazyllm/backend/operations.hpp"

namespace lazyllm::test {

/// A list in the host's memory.
template <class T>
struct HostArray {
  std::span<T> span() { return values; }
  const std::vector<T>& download() const { return values; }
  std::vector<T> values;
};

/// Where scores are computed in plain loops: the reference, and the same numbers for every backend that is given them.
struct PlainScores {};

/// Equation 1 in double precision: a softmax for each row and head, reduced over the heads, then over the window.
template <class T, class TaskOf>
void attention_scores(PlainScores&, const QueryRows<T>& queries, Index count, const TaskOf& task_of) {
  for (Index t = 0; t < count; ++t) {
    const auto task = task_of(t);
    std::vector<double> result(task.keys.size(), 0);
    const auto rows = static_cast<double>(task.limits.size());
    for (std::size_t row = 0; row < task.limits.size(); ++row) {
      std::vector<double> of_row(result.size(), 0);
      for (Index head = 0; head < queries.heads; ++head) {
        const T* const query = queries.query(task.first_row + static_cast<Index>(row), head);
        std::vector<double> logits;
        for (const Position position : task.keys.first(static_cast<std::size_t>(task.limits[row]))) {
          const T* const key = task.key_view.key(position, head / (queries.heads / task.key_view.kv_heads));
          double dot = 0;
          for (Index d = 0; d < queries.head_dim; ++d) {
            dot += static_cast<double>(static_cast<float>(query[d])) * static_cast<double>(static_cast<float>(key[d]));
          }
          logits.push_back(dot * static_cast<double>(queries.scale));
        }
        const double highest = *std::ranges::max_element(logits);
        double sum = 0;
        for (double& logit : logits) sum += logit = std::exp(logit - highest);
        for (std::size_t i = 0; i < logits.size(); ++i) {
          const double of_head = logits[i] / sum;
          of_row[i] = task.over_heads == Reduce::max ? std::max(of_row[i], of_head)
                                                     : of_row[i] + of_head / static_cast<double>(queries.heads);
        }
      }
      for (std::size_t i = 0; i < of_row.size(); ++i) {
        result[i] = task.over_rows == Reduce::max ? std::max(result[i], of_row[i]) : result[i] + of_row[i] / rows;
      }
    }
    std::ranges::transform(result, task.scores.begin(), [](double score) { return static_cast<float>(score); });
  }
}

/// The part of a `Memory` that scoring needs, see support/cpu_memory.hpp.
struct PlainMemory {
  static PlainScores make_context(int = 1) { return {}; }

  template <class T>
  static HostArray<T> upload(PlainScores&, std::vector<T> values) {
    return {std::move(values)};
  }
};

}  // namespace lazyllm::test
