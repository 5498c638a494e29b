#pragma once

#include <span>

#include "lazyllm/backend/operations.hpp"

/// \file
/// Operations of a backend for one sequence.
namespace lazyllm::test {

/// The scores of one sequence by `context`'s backend.
template <class Context, class T, class Keys>
void score_one(Context& context, const QueryRows<T>& queries, Index first_row, std::span<const Position> limits,
               const Keys& key_view, Positions keys, Reduce reduce, std::span<float> scores,
               Reduce heads = Reduce::mean) {
  attention_scores(context, queries, 1, [&](Index) {
    return ScoreTask<Keys>{.first_row = first_row,
                           .limits = limits,
                           .key_view = key_view,
                           .keys = keys,
                           .over_heads = heads,
                           .over_rows = reduce,
                           .scores = scores};
  });
}

}  // namespace lazyllm::test
