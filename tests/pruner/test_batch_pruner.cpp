#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "lazyllm/lazyllm.hpp"

using namespace lazyllm;

namespace {

using Pruner = TokenPruner<AnyPolicy>;
using Batch = detail::BatchPruner<cpu::Context, Pruner>;
using Kept = std::vector<Index>;
using Kind = Selection::Kind;

/// Gives every key of the batch the score that stands at its number.
struct Block {
  std::vector<float> scores;

  void token_scores(cpu::Context&, const LayerPlan& plan, std::span<const ScoreWindow> windows) {
    for (const ScoreWindow& window : windows) {
      const auto first = plan.key_indptr()[static_cast<std::size_t>(window.sequence)];
      std::copy_n(scores.begin() + first, window.scores.size(), window.scores.begin());
    }
  }
};

Kept list(std::span<const Index> indices) { return {indices.begin(), indices.end()}; }

/// One sequence of some keys in a plan of its own.
struct One {
  One(const std::vector<Position>& keys, Index tokens, std::vector<float> scores) : block{std::move(scores)} {
    builder.clear();
    builder.append_keys(keys);
    builder.append_row(keys.back());
    builder.finish_sequence(tokens, 1);
  }

  /// What stays where the tokens of `parked` would be revived.
  Kept kept(const Selection& selection, const std::set<Position>& parked = {}) {
    const LayerPlan plan = builder.layer(0, 2);
    const Pruner pruner{KeepAll()};
    const detail::PruneRequest<Pruner> request{.score = &pruner.score(), .new_tokens = 1, .selection = selection};
    const std::span<const detail::PruneRequest<Pruner>> requests(&request, 1);
    Batch batch;
    batch.score(context, block, plan, requests);
    batch.begin_prune(context, plan, requests, [&](Index, Position p) { return parked.contains(p); });
    batch.end_prune(context);
    CHECK(batch.bad(0) == -1);
    return list(batch.kept(0));
  }

  cpu::Context context;
  detail::PlanBuilder builder;
  Block block;
};

}  // namespace

TEST_CASE("revival budget: the best parked tokens come back, equal scores to the smaller position") {
  One test({0, 1, 2, 3, 4, 5, 6, 7}, 8, {5, 9, 7, 7, 7, 1, 6, 0});
  const std::set<Position> parked{1, 2, 3, 4};
  const auto kept = [&](Index k, Index limit) {
    return test.kept({.kind = Kind::top_k, .k = k, .max_revived = limit}, parked);
  };
  CHECK(kept(6, Selection::unlimited) == Kept{1, 2, 3, 4, 6, 7});
  CHECK(kept(6, 4) == Kept{1, 2, 3, 4, 6, 7});
  CHECK(kept(6, 3) == Kept{1, 2, 3, 6, 7});
  CHECK(kept(6, 2) == Kept{1, 2, 6, 7});
  CHECK(kept(6, 1) == Kept{1, 6, 7});
  CHECK(kept(6, 0) == Kept{6, 7});
  // No other token takes the place of one that stays parked.
  CHECK(kept(8, 0) == Kept{0, 5, 6, 7});
  CHECK(test.kept({.kind = Kind::top_p, .p = 1, .max_revived = 1}, parked) == Kept{0, 1, 5, 6, 7});
}

TEST_CASE("revival budget: protected tokens always come back, and count") {
  One test({0, 1, 2, 3, 4, 5, 6, 7}, 8, {0, 9, 7, 7, 7, 1, 6, 0});
  const std::set<Position> parked{0, 2, 3, 6};
  const std::vector<std::uint8_t> mask{0, 0, 0, 1};
  const auto kept = [&](Index limit) {
    return test.kept({.kind = Kind::top_k,
                      .k = 7,
                      .protect_first = 1,
                      .protect_last = 2,
                      .protect_mask = mask,
                      .max_revived = limit},
                     parked);
  };
  CHECK(kept(0) == Kept{0, 1, 3, 4, 6, 7});
  CHECK(kept(3) == Kept{0, 1, 3, 4, 6, 7});
  CHECK(kept(4) == Kept{0, 1, 2, 3, 4, 6, 7});
}

TEST_CASE("listed positions are protected beside the mask's") {
  One test({0, 2, 3, 5, 6, 7}, 8, {0, 9, 7, 8, 6, 0});
  const std::vector<std::uint8_t> mask{1, 0, 0, 0, 0, 0, 0, 0, 1};
  const std::vector<Position> listed{6, 1, 3, 99, -4};  // 1 is no key, the last two no tokens
  CHECK(test.kept({.kind = Kind::top_k, .k = 1, .protect_mask = mask, .protect = listed}, {}) == Kept{0, 2, 4, 5});
  CHECK(test.kept({.kind = Kind::top_k, .k = 5, .protect = listed}, {}) == Kept{1, 2, 3, 4, 5});
  CHECK(test.kept({.kind = Kind::top_k, .k = 6, .protect = listed, .max_revived = 1}, {2, 5, 6}) ==
        Kept{0, 2, 4, 5});  // 6 counts
}

TEST_CASE("batch pruner: random batches against the definition, one after the other") {
  std::mt19937 random(4);
  cpu::Context context(2);
  Batch batch;
  for (int round = 0; round < 400; ++round) {
    CAPTURE(round);
    detail::PlanBuilder builder;
    builder.clear();
    Block block;
    const auto sequences = static_cast<Index>(random() % 5) + 1;
    std::vector<std::vector<Position>> keys(static_cast<std::size_t>(sequences));
    std::vector<std::set<Position>> parked(keys.size());
    for (std::size_t s = 0; s < keys.size(); ++s) {
      const auto tokens = static_cast<Position>(random() % 40) + 1;
      for (Position p = 0; p < tokens; ++p) {
        if (p + 1 < tokens && random() % 3 == 0) continue;
        keys[s].push_back(p);
        block.scores.push_back(static_cast<float>(random() % 8) / 8);
        if (p + 1 < tokens && random() % 2 == 0) parked[s].insert(p);
      }
      builder.append_keys(keys[s]);
      builder.append_row(tokens - 1);
      builder.finish_sequence(tokens, 1);
    }
    const LayerPlan plan = builder.layer(0, 3);
    std::vector<Pruner> pruners;
    for (Index s = 0; s < sequences; ++s) {
      pruners.emplace_back(KeepAll(), AttentionScore{.over_layers = random() % 2 == 0,
                                                     .pooling = 2 * static_cast<Index>(random() % 3) + 1});
    }
    std::vector<detail::PruneRequest<Pruner>> requests;
    for (Index s = 0; s < sequences; ++s) {
      if (random() % 4 == 0) continue;  // not asked in this layer
      Selection selection{.kind = random() % 2 == 0 ? Kind::top_k : Kind::top_p,
                          .k = static_cast<Index>(random() % 20) + 1,
                          .p = static_cast<double>(random() % 8 + 1) / 8};
      if (random() % 4 == 0) selection.kind = Kind::all;  // only to be summed
      if (random() % 2 == 0) selection.protect_first = static_cast<Index>(random() % 4);
      if (random() % 2 == 0) selection.max_revived = static_cast<Index>(random() % 6);
      requests.push_back({.score = &pruners[static_cast<std::size_t>(s)].score(),
                          .sequence = s,
                          .new_tokens = 1,
                          .outputs = static_cast<Index>(random() % 3),
                          .selection = selection});
    }
    batch.reserve_sums(context, std::ssize(block.scores));
    batch.score(context, block, plan, std::span<const detail::PruneRequest<Pruner>>(requests));
    batch.begin_prune(context, plan, std::span<const detail::PruneRequest<Pruner>>(requests),
                      [&](Index s, Position p) { return parked[static_cast<std::size_t>(s)].contains(p); });
    batch.end_prune(context);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const detail::PruneRequest<Pruner>& request = requests[i];
      if (!request.selection.ranks()) continue;
      const auto s = static_cast<std::size_t>(request.sequence);
      const auto first = plan.key_indptr()[s];
      const Index width = request.score->pooling;
      std::vector<float> pooled;
      for (Index k = 0; k < std::ssize(keys[s]); ++k) {
        float highest = 0;
        for (Index j = std::max<Index>(0, k - width / 2); j < std::min(std::ssize(keys[s]), k + width / 2 + 1); ++j) {
          highest = std::max(highest, block.scores[static_cast<std::size_t>(first + j)]);
        }
        pooled.push_back(highest);
      }
      const Index tokens = keys[s].back() + 1;
      const auto is_protected = [&](std::size_t k) {
        return keys[s][k] < request.selection.protect_first ||
               keys[s][k] >= tokens - std::max<Index>(1, request.outputs);
      };
      std::vector<std::size_t> order(keys[s].size());
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
        if (is_protected(a) != is_protected(b)) return is_protected(a);
        return pooled[a] > pooled[b];
      });
      const double total = std::accumulate(pooled.begin(), pooled.end(), 0.0);
      double held = 0;
      Index chosen = 0, revived = 0;
      Kept expected;
      for (const std::size_t k : order) {
        const bool enough = request.selection.kind == Kind::top_k ? chosen >= request.selection.k
                                                                  : held >= (request.selection.p - 1e-9) * total;
        if (enough && !is_protected(k)) break;
        ++chosen;
        held += static_cast<double>(pooled[k]);
        const bool comes_back = parked[s].contains(keys[s][k]);
        if (comes_back && revived >= request.selection.max_revived && !is_protected(k)) continue;
        revived += comes_back;
        expected.push_back(static_cast<Index>(k));
      }
      std::ranges::sort(expected);
      CHECK(batch.bad(i) == -1);
      CHECK(list(batch.kept(i)) == expected);
    }
  }
}

TEST_CASE("batch pruner: a bad score is told for its request alone") {
  cpu::Context context;
  DensePlan dense;
  dense.start(std::vector<DensePlan::Extent>{{0, 3}, {0, 4}, {0, 2}});
  const LayerPlan plan = dense.layer(0, 2);
  Block block{{1, 2, 3, 4, std::numeric_limits<float>::quiet_NaN(), 5, 6, 7, 8}};
  const Pruner pruner{KeepAll()};
  std::vector<detail::PruneRequest<Pruner>> requests;
  for (Index s = 0; s < 3; ++s) {
    requests.push_back(
        {.score = &pruner.score(), .sequence = s, .new_tokens = 1, .selection = {.kind = Kind::top_k, .k = 2}});
  }
  Batch batch;
  batch.score(context, block, plan, std::span<const detail::PruneRequest<Pruner>>(requests));
  batch.begin_prune(context, plan, std::span<const detail::PruneRequest<Pruner>>(requests),
                    [](Index, Position) { return false; });
  batch.end_prune(context);
  CHECK(batch.bad(0) == -1);
  CHECK(batch.bad(1) == 1);
  CHECK(batch.bad(2) == -1);
  CHECK(list(batch.kept(0)) == Kept{1, 2});
  CHECK(list(batch.kept(2)) == Kept{0, 1});
}
