#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "lazyllm/engine/contiguous_keys.hpp"
#include "lazyllm/engine/paged_keys.hpp"
#include "lazyllm/engine/queries.hpp"
#include "support/one_sequence.hpp"
#include "support/plain_scores.hpp"

namespace lazyllm::test {

/// Random queries and keys of one sequence, with NaN where nothing may be read. What its scores should be are those of
/// `PlainMemory`.
template <class T>
struct AttentionProblem {
  AttentionProblem(unsigned seed, Index heads_, Index kv_heads_, Index head_dim_, Index tokens, Index window)
      : heads(heads_), kv_heads(kv_heads_), head_dim(head_dim_) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (Position p = 0; p < tokens; ++p) {
      if (seed % 2 == 0 || p + window >= tokens || random() % 3 != 0) active.push_back(p);
    }
    for (Index i = 0; i < window; ++i) limits.push_back(static_cast<Position>(std::ssize(active) - window + 1 + i));
    queries.assign(static_cast<std::size_t>((first_row + window) * row_width()), poison());
    for (auto q = queries.begin() + first_row * row_width(); q != queries.end(); ++q)
      *q = static_cast<T>(normal(random));
    keys.assign(static_cast<std::size_t>(tokens * key_width()), poison());
    for (const Position p : active) {
      for (Index i = 0; i < key_width(); ++i) keys[at(p * key_width() + i)] = static_cast<T>(2 * normal(random));
    }
  }

  static T poison() { return static_cast<T>(std::numeric_limits<float>::quiet_NaN()); }
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  Index row_width() const { return heads * head_dim; }
  Index key_width() const { return kv_heads * head_dim; }

  float scale() const { return 1 / std::sqrt(static_cast<float>(head_dim)); }
  QueryRows<T> query_rows(const T* data) const { return {data, row_width(), head_dim, heads, head_dim, scale()}; }
  ContiguousKeys<T> key_view(const T* data) const { return {data, key_width(), head_dim, kv_heads}; }

  /// By the backend of `Memory`; from pages, in reverse order and with gaps, if `page_size` is not 0.
  template <class Memory>
  std::vector<float> scores(Reduce reduce, Index page_size = 0, Reduce over_heads = Reduce::mean) const {
    auto context = Memory::make_context();
    auto query_memory = Memory::upload(context, queries);
    const QueryRows<T> rows = query_rows(query_memory.span().data());
    auto result = Memory::upload(context, std::vector<float>(active.size(), AttentionProblem<float>::poison()));
    if (page_size == 0) {
      auto memory = Memory::upload(context, keys);
      score_one(context, rows, first_row, limits, key_view(memory.span().data()), active, reduce, result.span(),
                over_heads);
      return result.download();
    }
    const Index pages = (active.back() + page_size) / page_size;
    const Index page_stride = page_size * key_width() + 8;
    std::vector<T> paged(at(pages * page_stride), poison());
    std::vector<std::int32_t> table;
    for (Index page = 0; page < pages; ++page) {
      table.push_back(static_cast<std::int32_t>(pages - 1 - page));
      const Index first = page * page_size * key_width();
      std::copy_n(keys.begin() + first, std::min(page_size * key_width(), std::ssize(keys) - first),
                  paged.begin() + table.back() * page_stride);
    }
    auto memory = Memory::upload(context, paged);
    auto device_table = Memory::upload(context, table);
    const PagedKeys<T> view{
        memory.span().data(), device_table.span().data(), page_size, page_stride, key_width(), head_dim, kv_heads};
    score_one(context, rows, first_row, limits, view, active, reduce, result.span(), over_heads);
    return result.download();
  }

  Index heads, kv_heads, head_dim;
  static constexpr Index first_row = 2;  // rows of other tokens of the batch stand before
  std::vector<Position> active, limits;
  std::vector<T> queries, keys;
};

/// The highest relative error of a score.
inline double worst_error(const std::vector<float>& scores, const std::vector<float>& expected) {
  double worst = scores.size() == expected.size() ? 0 : 1;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const auto right = static_cast<double>(expected[i]);
    const double error = std::abs(static_cast<double>(scores[i]) - right) / (right + 1e-6);
    worst = std::isnan(error) ? 1 : std::max(worst, error);
  }
  return worst;
}

}  // namespace lazyllm::test
