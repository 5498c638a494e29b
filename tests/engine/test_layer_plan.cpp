#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "lazyllm/engine/dense_plan.hpp"
#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/layer_plan.hpp"
#include "lazyllm/engine/plan_builder.hpp"

using namespace lazyllm;

namespace {

using List = std::vector<Position>;

List list(Positions positions) { return {positions.begin(), positions.end()}; }

/// The mask by its definition.
Mask expected_mask(const List& rows, const List& keys) {
  if (rows == keys) return Mask::causal;
  const List tail(keys.end() - std::ssize(rows), keys.end());
  return rows == tail ? Mask::suffix_causal : Mask::ragged_causal;
}

List expected_limits(const List& rows, const List& keys) {
  List limits;
  for (const Position row : rows) {
    limits.push_back(static_cast<Position>(std::ranges::count_if(keys, [row](Position key) { return key <= row; })));
  }
  return limits;
}

void append(detail::PlanBuilder& builder, const List& rows, const List& keys, Index tokens, Index outputs = 1) {
  for (const Position row : rows) builder.append_row(row);
  builder.append_keys(keys);
  builder.finish_sequence(tokens, outputs);
}

}  // namespace

TEST_CASE("plan: the three masks of one sequence") {
  const auto plan_mask = [](const List& rows, const List& keys) {
    detail::PlanBuilder builder;
    builder.clear();
    append(builder, rows, keys, 10);
    return builder.layer(0, 2).sequence(0).mask;
  };
  CHECK(plan_mask({2, 5, 9}, {2, 5, 9}) == Mask::causal);
  CHECK(plan_mask({5, 9}, {2, 5, 9}) == Mask::suffix_causal);
  CHECK(plan_mask({9}, {2, 5, 9}) == Mask::suffix_causal);
  CHECK(plan_mask({2, 9}, {2, 5, 9}) == Mask::ragged_causal);
}

TEST_CASE("plan: the mask of a batch is its least special one") {
  detail::PlanBuilder builder;
  builder.clear();
  append(builder, {0, 1}, {0, 1}, 2);
  CHECK(builder.layer(0, 2).mask() == Mask::causal);
  append(builder, {2}, {1, 2}, 3);
  CHECK(builder.layer(0, 2).mask() == Mask::suffix_causal);
  append(builder, {0, 2}, {0, 1, 2}, 3);
  append(builder, {0}, {0}, 1);
  CHECK(builder.layer(0, 2).mask() == Mask::ragged_causal);
}

TEST_CASE("positions: is_prefix says whether they are 0, 1, ...") {
  CHECK(is_prefix(List{}));
  CHECK(is_prefix(List{0, 1, 2}));
  CHECK_FALSE(is_prefix(List{0, 2}));
  CHECK_FALSE(is_prefix(List{1, 2}));
}

TEST_CASE("plan: only the last layer needs the output rows only") {
  DensePlan dense;
  dense.start(std::vector<DensePlan::Extent>{{0, 3}});
  CHECK_FALSE(dense.layer(0, 2).outputs_only());
  CHECK(dense.layer(1, 2).outputs_only());
  CHECK(dense.layer(1, 2).layer() == 1);
  CHECK(dense.layer(1, 2).layers() == 2);
}

TEST_CASE("plan: an empty batch has the most special mask") {
  DensePlan dense;
  CHECK(dense.layer(0, 2).mask() == Mask::causal);
  dense.start({});
  CHECK(dense.layer(0, 2).mask() == Mask::causal);
}

TEST_CASE("dense plan: numbers out of range are refused and the last plan stays") {
  constexpr Index max_tokens = std::numeric_limits<Position>::max();
  DensePlan dense;
  dense.start(2, 3);
  const auto start = [&](Index history, Index new_tokens, Index outputs) {
    // The first sequence is right: none of the batch may be planned.
    dense.start(std::vector<DensePlan::Extent>{{0, 7, 1}, {history, new_tokens, outputs}});
  };
  CHECK_THROWS_WITH_AS(start(-1, 1, 1), "lazyllm: DensePlan::start: history -1 is out of range 0 to 2147483647",
                       invalid_argument);
  CHECK_THROWS_WITH_AS(start(5, -1, 0), "lazyllm: DensePlan::start: new_tokens -1 is out of range 0 to 2147483642",
                       invalid_argument);
  CHECK_THROWS_AS(start(max_tokens, 1, 1), invalid_argument);
  CHECK_THROWS_AS(start(1, 3, -1), invalid_argument);
  CHECK_THROWS_WITH_AS(start(1, 3, 4), "lazyllm: DensePlan::start: outputs 4 is out of range 0 to 3", invalid_argument);
  CHECK(list(dense.layer(0, 2).positions()) == List{2, 3, 4});
  start(1, 3, 3);
  start(4, 0, 0);  // a sequence that does nothing
  CHECK(list(dense.layer(0, 2).positions()) == List{0, 1, 2, 3, 4, 5, 6});
}

TEST_CASE("plan: random ragged batches against the definitions, with one set of builder used again") {
  std::mt19937 random(1);
  detail::PlanBuilder builder;
  detail::PlanBuilder other;
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    const auto sequences = std::uniform_int_distribution<std::size_t>(1, 4)(random);
    std::vector<List> rows(sequences);
    std::vector<List> keys(sequences);
    std::vector<Index> tokens(sequences);
    std::vector<Index> outputs(sequences);
    builder.clear();
    for (std::size_t s = 0; s < sequences; ++s) {
      tokens[s] = std::uniform_int_distribution<Index>(1, 12)(random);
      if (random() % 5 == 0) {  // a sequence that waits for a deeper layer
        append(builder, {}, {}, tokens[s], 0);
        continue;
      }
      for (Position p = 0; p < tokens[s]; ++p) {
        if (p + 1 < tokens[s] && random() % 3 == 0) continue;
        keys[s].push_back(p);
        if (p + 1 == tokens[s] || random() % 2 == 0) rows[s].push_back(p);
      }
      if (random() % 4 == 0) rows[s] = keys[s];
      outputs[s] = std::uniform_int_distribution<Index>(0, std::ssize(rows[s]))(random);
      append(builder, rows[s], keys[s], tokens[s], outputs[s]);
    }
    if (round % 2 == 1) std::swap(builder, other);
    const detail::PlanBuilder& filled = round % 2 == 1 ? other : builder;
    const LayerPlan plan = filled.layer(1, 3);

    REQUIRE(plan.sequences() == std::ssize(rows));
    List all_rows, all_keys, all_limits;
    std::vector<Index> row_indptr{0}, key_indptr{0};
    for (std::size_t s = 0; s < sequences; ++s) {
      const SequencePlan part = plan.sequence(static_cast<Index>(s));
      const List limits = expected_limits(rows[s], keys[s]);
      CHECK(list(part.positions) == rows[s]);
      CHECK(list(part.keys) == keys[s]);
      CHECK(list(part.key_limits) == limits);
      CHECK(part.first_row == std::ssize(all_rows));
      CHECK(part.tokens == tokens[s]);
      CHECK(part.outputs == outputs[s]);
      CHECK(part.mask == expected_mask(rows[s], keys[s]));
      all_rows.insert(all_rows.end(), rows[s].begin(), rows[s].end());
      all_keys.insert(all_keys.end(), keys[s].begin(), keys[s].end());
      all_limits.insert(all_limits.end(), limits.begin(), limits.end());
      row_indptr.push_back(std::ssize(all_rows));
      key_indptr.push_back(std::ssize(all_keys));
    }
    CHECK(list(plan.positions()) == all_rows);
    CHECK(list(plan.keys()) == all_keys);
    CHECK(list(plan.key_limits()) == all_limits);
    CHECK(std::ranges::equal(plan.row_indptr(), row_indptr));
    CHECK(std::ranges::equal(plan.key_indptr(), key_indptr));
    CHECK(std::ranges::equal(plan.outputs(), outputs));
    CHECK(plan.rows() == std::ssize(all_rows));
    CHECK(filled.row_count() == std::ssize(all_rows));
    CHECK(filled.key_count() == std::ssize(all_keys));
  }
}

TEST_CASE("plan: the dense plan of layer 0 has the new tokens as rows and all tokens as keys") {
  DensePlan dense;
  const std::vector<DensePlan::Extent> extents{{0, 3}, {4, 1}, {2, 2, 2}};
  for (int again = 0; again < 2; ++again) {  // a second start must not see the first one's lists
    dense.start(extents);
    const LayerPlan plan = dense.layer(0, 1);
    REQUIRE(plan.sequences() == 3);
    CHECK(list(plan.positions()) == List{0, 1, 2, 4, 2, 3});
    CHECK(list(plan.keys()) == List{0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2, 3});
    CHECK(list(plan.key_limits()) == List{1, 2, 3, 5, 3, 4});
    CHECK(plan.sequence(0).mask == Mask::causal);
    CHECK(plan.sequence(1).mask == Mask::suffix_causal);
    CHECK(plan.sequence(2).mask == Mask::suffix_causal);
    CHECK(is_prefix(plan.sequence(1).keys));
    CHECK(plan.sequence(1).tokens == 5);
    CHECK(std::ranges::equal(plan.outputs(), std::vector<Index>{1, 1, 2}));
    CHECK_FALSE(plan.scores_wanted());
  }
}

TEST_CASE("plan: the dense plan of one sequence is that of a batch of one") {
  DensePlan dense;
  dense.start(4, 2);
  const LayerPlan plan = dense.layer(0, 1, true);
  CHECK(plan.sequences() == 1);
  CHECK(list(plan.positions()) == List{4, 5});
  CHECK(list(plan.keys()) == List{0, 1, 2, 3, 4, 5});
  CHECK(plan.scores_wanted());
}
