#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <list>
#include <numeric>
#include <random>
#include <vector>

#include "lazyllm/backend/operations.hpp"
#include "lazyllm/backend/score_order.hpp"
#include "support/attention_problem.hpp"
#include "support/one_sequence.hpp"
#include "support/runs.hpp"

/// What every backend must do, each operation beside its slow, obvious meaning. A backend's test names a `Memory`: how
/// to make a context of the backend, and `upload(context, values)`, an object with `span()` in its memory and
/// `download()` back to a vector.
namespace lazyllm::test {

template <class Memory, class T>
void copies_rows() {
  auto context = Memory::make_context();
  std::mt19937 random(1);
  for (const Index width : {1, 3, 64, 1000}) {
    for (const Index count : {0, 1, 7, 90}) {
      constexpr Index source_rows = 100, target_rows = 120, gap = 2;
      std::vector<T> source(static_cast<std::size_t>(source_rows * (width + gap)));
      for (T& value : source) value = static_cast<T>(static_cast<float>(random() % 256));
      std::vector<T> expected(static_cast<std::size_t>(target_rows * width), static_cast<T>(1));
      std::vector<Index> from, to(target_rows);
      for (Index i = 0; i < count; ++i) from.push_back(static_cast<Index>(random() % source_rows));
      std::iota(to.begin(), to.end(), 0);
      std::shuffle(to.begin(), to.end(), random);
      to.resize(static_cast<std::size_t>(count));
      auto in = Memory::upload(context, source);
      auto out = Memory::upload(context, expected);
      for (std::size_t i = 0; i < from.size(); ++i) {
        std::copy_n(source.begin() + from[i] * (width + gap), width, expected.begin() + to[i] * width);
      }
      copy_rows(context, RowsView<const T>(in.span().data(), source_rows, width, width + gap),
                std::span<const Index>(from), RowsView<T>(out.span().data(), target_rows, width),
                std::span<const Index>(to));
      CHECK(out.download() == expected);
    }
  }
}

/// Several copies between several matrices in one call, some without rows.
template <class Memory>
void copies_lists_of_rows() {
  auto context = Memory::make_context();
  auto a = Memory::upload(context, std::vector<float>{1, 2, 3, 4, 5, 6});
  auto b = Memory::upload(context, std::vector<float>{10, 20, 30, 40});
  auto out = Memory::upload(context, std::vector<float>(8, -1.0F));
  auto other = Memory::upload(context, std::vector<float>(2, -1.0F));
  const std::vector<Index> none, zero{0}, one{1}, two{2}, from{2, 0}, to{3, 0};
  const RowsView<const float> rows_a(a.span().data(), 3, 2), rows_b(b.span().data(), 2, 2);
  const RowsView<float> target(out.span().data(), 4, 2);
  const std::vector<RowCopy<float>> copies{{rows_a, from, target, to},
                                           {RowsView<const float>(), none, RowsView<float>(), none},
                                           {rows_b, one, target, two},
                                           {rows_b, zero, RowsView<float>(other.span().data(), 1, 2), zero}};
  copy_rows(context, std::span(copies));
  copy_rows(context, std::span<const RowCopy<float>>());
  CHECK(out.download() == std::vector<float>{1, 2, -1, -1, 30, 40, 5, 6});
  CHECK(other.download() == std::vector<float>{10, 20});
}

/// The host's memory has no gaps, and may be used again at once.
template <class Memory, class T>
void copies_to_and_from_host() {
  auto context = Memory::make_context();
  for (const Index stride : {3, 5}) {
    std::vector<T> values, expected(static_cast<std::size_t>(4 * stride), static_cast<T>(7.0F));
    for (int i = 0; i < 12; ++i) values.push_back(static_cast<T>(static_cast<float>(i)));
    auto memory = Memory::upload(context, expected);
    const RowsView<T> rows(memory.span().data(), 4, 3, stride);
    std::vector<T> source = values;
    copy_from_host(context, static_cast<const T*>(source.data()), rows);
    std::ranges::fill(source, static_cast<T>(99.0F));
    for (Index r = 0; r < 4; ++r) std::copy_n(values.begin() + r * 3, 3, expected.begin() + r * stride);
    CHECK(memory.download() == expected);
    std::vector<T> target(12);
    copy_to_host(context, RowsView<const T>(rows), target.data());
    CHECK(target == values);
  }
}

/// Selection by a stable sort of all `scores`, those of `task` on the host.
inline std::vector<Index> sorted_selection(const SelectionTask& task, const std::vector<float>& scores) {
  std::vector<Index> order(task.keys.size());
  std::iota(order.begin(), order.end(), 0);
  const auto is_protected = [&](Index i) { return task.protects(task.keys[static_cast<std::size_t>(i)]); };
  const auto score = [&](Index i) { return scores[static_cast<std::size_t>(i)]; };
  std::ranges::stable_sort(order, [&](Index a, Index b) { return score(a) > score(b); });
  std::stable_partition(order.begin(), order.end(), is_protected);
  const double total = std::accumulate(scores.begin(), scores.end(), 0.0);
  double held = 0;
  std::vector<Index> chosen;
  for (const Index i : order) {
    const bool enough = task.top_p ? held >= (task.p - 1e-9) * total : std::ssize(chosen) >= task.k;
    if (enough && !is_protected(i)) break;
    chosen.push_back(i);
    held += score(i);
  }
  std::vector<Index> kept;
  Index revived = 0;
  for (const Index i : chosen) {
    const bool revives = !task.revives.empty() && task.revives[static_cast<std::size_t>(i)] != 0;
    if (revives && revived >= task.max_revived && !is_protected(i)) continue;
    kept.push_back(i);
    revived += revives;
  }
  std::ranges::sort(kept);
  return kept;
}

/// What one task keeps.
template <class Memory, class Context>
std::vector<Index> selected(Context& context, SelectionTask task, const std::vector<float>& scores) {
  auto memory = Memory::upload(context, scores);
  task.scores = memory.span();
  KeptTokens kept{{-7}, {0, 1}, {3}};  // select_tokens overwrites
  select_tokens(context, std::span<const SelectionTask>(&task, 1), kept);
  CHECK(kept.indptr == std::vector<Index>{0, std::ssize(kept.indices)});
  CHECK(kept.bad == std::vector<Index>{-1});
  return kept.indices;
}

template <class Memory>
void selects_small_cases() {
  using Kept = std::vector<Index>;
  auto context = Memory::make_context();
  const std::vector<Position> keys{0, 2, 3, 7, 8, 9};
  const std::vector<float> scores{0.1F, 0.3F, 0.05F, 0.3F, 0.2F, 0.05F};
  const auto kept = [&](SelectionTask task) {
    task.keys = keys;
    return selected<Memory>(context, task, scores);
  };
  // Protected keys are always there and count; equal scores go to the smaller position.
  CHECK(kept({.k = 1, .protect_from = 9}) == Kept{5});
  CHECK(kept({.k = 2, .protect_from = 9}) == Kept{1, 5});
  CHECK(kept({.k = 3, .protect_from = 9}) == Kept{1, 3, 5});
  CHECK(kept({.k = 4, .protect_from = 9}) == Kept{1, 3, 4, 5});
  CHECK(kept({.k = 6, .protect_from = 9}) == Kept{0, 1, 2, 3, 4, 5});
  CHECK(kept({.k = 3, .protect_before = 1, .protect_from = 9}) == Kept{0, 1, 5});
  CHECK(kept({.k = 3, .protect_before = 3, .protect_from = 9}) == Kept{0, 1, 5});
  CHECK(kept({.k = 3, .protect_from = 8}) == Kept{1, 4, 5});
  CHECK(kept({.k = 1, .protect_from = 6}) == Kept{3, 4, 5});
  CHECK(kept({.k = 3, .protect_from = 10}) == Kept{1, 3, 4});
  CHECK(kept({.k = 0, .protect_from = 10}) == Kept{});
  CHECK(kept({.k = 0, .protect_from = 9}) == Kept{5});
  const std::vector<std::uint8_t> mask{0, 0, 0, 1};
  CHECK(kept({.k = 3, .protect_from = 9, .protect_mask = mask}) == Kept{1, 2, 5});
  CHECK(kept({.k = 2, .protect_before = 1, .protect_from = 8, .protect_mask = mask}) == Kept{0, 2, 4, 5});
  CHECK(kept({.top_p = true, .p = 0.01, .protect_from = 9}) == Kept{5});
  CHECK(kept({.top_p = true, .p = 0.2, .protect_from = 9}) == Kept{1, 5});
  CHECK(kept({.top_p = true, .p = 0.5, .protect_from = 9}) == Kept{1, 3, 5});
  CHECK(kept({.top_p = true, .p = 0.5, .protect_before = 1, .protect_from = 9}) == Kept{0, 1, 3, 5});
  CHECK(kept({.top_p = true, .p = 0.7, .protect_from = 8}) == Kept{1, 3, 4, 5});
  CHECK(kept({.top_p = true, .p = 1, .protect_from = 9}) == Kept{0, 1, 2, 3, 4, 5});
  const std::vector<std::uint8_t> revives{1, 1, 1, 1, 0, 1};
  for (const auto& [limit, expected] : {std::pair<Index, Kept>{0, {4, 5}},
                                        {1, {4, 5}},
                                        {2, {1, 4, 5}},
                                        {3, {1, 3, 4, 5}},
                                        {4, {0, 1, 3, 4, 5}},
                                        {5, {0, 1, 3, 4, 5}}}) {
    CHECK(kept({.k = 5, .protect_from = 9, .revives = revives, .max_revived = limit}) == expected);
  }
}

template <class Memory>
void selects_equal_scores() {
  auto context = Memory::make_context();
  std::vector<Position> keys(50);
  std::iota(keys.begin(), keys.end(), 0);
  for (const float value : {0.0F, 0.02F}) {
    const std::vector<float> scores(50, value);
    for (Index count = 1; count <= 50; ++count) {
      std::vector<Index> expected(static_cast<std::size_t>(count - 1));
      std::iota(expected.begin(), expected.end(), 0);
      expected.push_back(49);
      CHECK(selected<Memory>(context, {.k = count, .protect_from = 49, .keys = keys}, scores) == expected);
    }
  }
}

/// Random tokens, scores and a task to select among them.
struct SelectionProblem {
  SelectionProblem(std::mt19937& random, unsigned max_tokens, unsigned levels) {
    const auto tokens = static_cast<Position>(random() % max_tokens + 1);
    for (Position p = 0; p < tokens; ++p) {
      if (p + 1 < tokens && random() % 4 == 0) continue;
      keys.push_back(p);
      // Multiples of a power of two, so that the reference's sums are exact too.
      scores.push_back(static_cast<float>(random() % levels) * 0x1p-20F);
    }
    mask.resize(random() % 3 == 0 ? random() % 30 : 0);
    for (auto& entry : mask) entry = random() % 4 == 0;
    if (random() % 2 == 0) revives.resize(keys.size());
    for (auto& entry : revives) entry = random() % 3 == 0;
    task = {.top_p = random() % 2 == 0,
            .k = static_cast<Index>(random()) % std::ssize(keys) + 1,
            .p = static_cast<double>(random() % 1000 + 1) / 1000,
            .protect_before = random() % 2 == 0 ? static_cast<Index>(random() % 5) : 0,
            .protect_from = tokens - (random() % 2 == 0 ? static_cast<Index>(random() % 5) : 0),
            .protect_mask = mask,
            .revives = revives,
            .max_revived = static_cast<Index>(random()) % (std::ssize(keys) / 4 + 2),
            .keys = keys};
  }
  SelectionProblem(const SelectionProblem&) = delete;  // the task points into it

  std::vector<Index> expected() const { return sorted_selection(task, scores); }

  std::vector<Position> keys;
  std::vector<float> scores;
  std::vector<std::uint8_t> mask;
  std::vector<std::uint8_t> revives;
  SelectionTask task;
};

/// The highest score among the `pooling` ones around each.
inline std::vector<float> pooled(const std::vector<float>& scores, Index pooling) {
  std::vector<float> result(scores);
  for (Index i = 0; i < std::ssize(scores); ++i) {
    for (Index j = std::max<Index>(0, i - pooling / 2); j <= i + pooling / 2 && j < std::ssize(scores); ++j) {
      result[static_cast<std::size_t>(i)] =
          std::max(result[static_cast<std::size_t>(i)], scores[static_cast<std::size_t>(j)]);
    }
  }
  return result;
}

/// Few levels make many ties.
inline unsigned levels(unsigned round) { return round % 2 == 0 ? 5 : 1U << 20; }

template <class Memory>
void selects_like_a_stable_sort(unsigned rounds = 1500) {
  auto context = Memory::make_context();
  std::mt19937 random(5);
  for (unsigned round = 0; round < rounds; ++round) {
    CAPTURE(round);
    const SelectionProblem problem(random, round % 10 == 0 ? 3000 : 40, levels(round));
    CHECK(selected<Memory>(context, problem.task, problem.scores) == problem.expected());
  }
}

/// A ragged batch gives each task what it would get alone.
template <class Memory>
void selects_for_ragged_batches(unsigned rounds = 100) {
  auto context = Memory::make_context();
  std::mt19937 random(6);
  for (unsigned round = 0; round < rounds; ++round) {
    CAPTURE(round);
    std::list<SelectionProblem> problems;
    std::list<decltype(Memory::upload(context, std::vector<float>()))> memory;
    std::vector<SelectionTask> tasks;
    std::vector<Index> expected, indptr{0};
    for (unsigned i = 0; i < round % 7; ++i) {
      const auto& problem = problems.emplace_back(random, i == 3 ? 500 : 40, levels(round));
      memory.push_back(Memory::upload(context, problem.scores));
      tasks.push_back(problem.task);
      tasks.back().scores = memory.back().span();
      std::ranges::copy(problem.expected(), std::back_inserter(expected));
      indptr.push_back(std::ssize(expected));
    }
    KeptTokens kept;
    select_tokens(context, std::span<const SelectionTask>(tasks), kept);
    CHECK(kept.bad == std::vector<Index>(tasks.size(), -1));
    CHECK(kept.indices == expected);
    CHECK(kept.indptr == indptr);
  }
}

/// Sums of scores must not depend on their order: here a share of them ends between two tokens of equal score.
template <class Memory>
void selects_the_same_share_in_any_order() {
  auto context = Memory::make_context();
  std::mt19937 random(7);
  std::vector<Position> keys(400);
  std::iota(keys.begin(), keys.end(), 0);
  for (int round = 0; round < 40; ++round) {
    CAPTURE(round);
    // Magnitudes from 1 down to far below, the smallest ones together not to be neglected.
    std::vector<float> scores;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      scores.push_back(std::ldexp(static_cast<float>(random() % 1000 + 1), -static_cast<int>(random() % 20) - 10));
    }
    const double p = static_cast<double>(random() % 1000) / 1000 + 1e-4;
    const auto kept = selected<Memory>(context, {.top_p = true, .p = p, .protect_from = 399, .keys = keys}, scores);
    std::vector<float> sorted(scores.begin(), scores.end() - 1);
    std::ranges::sort(sorted, std::greater<>());
    __extension__ using Exact = __int128;  // the scores are multiples of 2^-29
    const auto exact = [](float score) { return static_cast<Exact>(std::ldexp(static_cast<double>(score), 29)); };
    Exact total = 0, held = exact(scores.back());
    for (const float score : scores) total += exact(score);
    Index count = 1;
    for (; static_cast<double>(held) < (p - 1e-9) * static_cast<double>(total); ++count) {
      held += exact(sorted[static_cast<std::size_t>(count - 1)]);
    }
    CHECK(std::ssize(kept) == count);
  }
}

/// A share of the scores is the same set whatever their scale, down to denormal numbers.
template <class Memory>
void selects_the_same_share_at_any_scale() {
  auto context = Memory::make_context();
  std::vector<Position> keys(16);
  std::iota(keys.begin(), keys.end(), 0);
  const auto kept_at = [&](int exponent, double p) {
    std::vector<float> scores;
    for (int i = 1; i <= 16; ++i) scores.push_back(std::ldexp(static_cast<float>(i), exponent));
    return selected<Memory>(context, {.top_p = true, .p = p, .protect_from = 15, .keys = keys}, scores);
  };
  // 16 + 15 + 14 + 13 + 12 = 70 of 136; 16 + 15 = 31 = 0.2279... of it
  CHECK(kept_at(0, 0.5) == std::vector<Index>{11, 12, 13, 14, 15});
  CHECK(kept_at(0, 31.0 / 136) == std::vector<Index>{14, 15});
  for (const int exponent : {-149, -140, -126, -60, -37, -30, 30, 60, 123}) {
    CAPTURE(exponent);
    for (const double p : {0.001, 31.0 / 136, 0.5, 0.9, 1.0}) CHECK(kept_at(exponent, p) == kept_at(0, p));
  }
}

/// A score that is not finite fails its own task; the others keep what they would keep without it.
template <class Memory>
void selects_only_finite_scores() {
  auto context = Memory::make_context();
  const std::vector<Position> keys{1, 4, 5, 9};
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (std::size_t place = 0; place < keys.size(); ++place) {
      for (const bool top_p : {false, true}) {
        std::vector<float> scores(keys.size(), 0.25F);
        scores[place] = bad;
        auto memory = Memory::upload(context, scores);
        auto good = Memory::upload(context, std::vector<float>(keys.size(), 0.25F));
        const SelectionTask task{
            .top_p = top_p, .k = 2, .p = 0.5, .protect_before = 2, .protect_from = 9, .keys = keys};
        std::vector<SelectionTask> tasks{task, task, task};
        tasks[0].scores = tasks[2].scores = good.span();
        tasks[1].scores = memory.span();
        KeptTokens kept;
        select_tokens(context, std::span<const SelectionTask>(tasks), kept);
        CHECK(kept.bad == std::vector<Index>{-1, static_cast<Index>(place), -1});
        CHECK(kept.indptr == std::vector<Index>{0, 2, 2, 4});
        CHECK(kept.indices == std::vector<Index>{0, 3, 0, 3});
      }
    }
  }
}

/// All scores of a batch that are pooled, in one call.
template <class Memory>
void pools_scores(unsigned rounds = 60) {
  auto context = Memory::make_context();
  std::mt19937 random(9);
  for (unsigned round = 0; round < rounds; ++round) {
    CAPTURE(round);
    std::list<decltype(Memory::upload(context, std::vector<float>()))> scores, results;
    std::vector<PoolTask> tasks;
    std::vector<std::vector<float>> expected;
    for (unsigned i = 0; i < round % 6; ++i) {
      std::vector<float> values(i == 2 ? random() % 1500 : random() % 40);
      for (float& value : values) value = static_cast<float>(random() % 1000) - (round % 2 == 0 ? 0.0F : 500.0F);
      const Index pooling = i == 4 ? 10001 : 2 * static_cast<Index>(random() % 5) + 1;
      expected.push_back(pooled(values, pooling));
      results.push_back(Memory::upload(context, std::vector<float>(values.size(), -1e9F)));
      scores.push_back(Memory::upload(context, values));
      tasks.push_back({scores.back().span(), results.back().span(), pooling});
    }
    pool_scores(context, std::span<const PoolTask>(tasks));
    auto result = results.begin();
    for (std::size_t i = 0; i < expected.size(); ++i, ++result) CHECK(result->download() == expected[i]);
  }
}

/// Pooling does not spread a number that is not finite, nor hide it.
template <class Memory>
void finds_bad_scores_among_pooled_ones() {
  auto context = Memory::make_context();
  const std::vector<Position> keys{0, 1, 2, 3, 4};
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (std::size_t place = 0; place < keys.size(); ++place) {
      std::vector<float> scores{5, 4, 3, 2, 1};
      scores[place] = bad;
      auto memory = Memory::upload(context, scores);
      auto result = Memory::upload(context, std::vector<float>(5));
      const PoolTask pool{memory.span(), result.span(), 3};
      pool_scores(context, std::span<const PoolTask>(&pool, 1));
      const std::vector<float> after = result.download();
      for (std::size_t i = 0; i < after.size(); ++i) CHECK(lazyllm::detail::is_finite(after[i]) == (i != place));
      const SelectionTask task{.k = 2, .protect_from = 4, .keys = keys, .scores = result.span()};
      KeptTokens kept;
      select_tokens(context, std::span<const SelectionTask>(&task, 1), kept);
      CHECK(kept.bad == std::vector<Index>{static_cast<Index>(place)});
    }
  }
}

template <class Memory>
void accumulates_scores() {
  auto context = Memory::make_context();
  auto scores = Memory::upload(context, std::vector<float>{1, 5, 2, 0});
  auto sums = Memory::upload(context, std::vector<float>(4, std::numeric_limits<float>::quiet_NaN()));
  accumulate_scores(context, scores.span(), sums.span(), true);
  accumulate_scores(context, scores.span(), sums.span(), false);
  CHECK(scores.download() == std::vector<float>{2, 10, 4, 0});
  CHECK(sums.download() == std::vector<float>{2, 10, 4, 0});
}

template <class Memory, class T>
void scores_attention() {
  unsigned seed = 0;
  struct Case {
    Index kv_heads, head_dim, tokens, window;
  };
  for (const Case& shape : {Case{8, 16, 1, 1}, Case{8, 8, 2, 2}, Case{4, 20, 7, 1}, Case{2, 16, 33, 3},
                            Case{1, 16, 300, 1}, Case{8, 3, 150, 1}, Case{2, 128, 140, 1}, Case{4, 72, 40, 2},
                            Case{1, 8, 129, 2}, Case{2, 8, 40, 19}, Case{4, 16, 600, 3}}) {
    for (const Reduce reduce : {Reduce::mean, Reduce::max}) {
      CAPTURE(shape.head_dim);
      CAPTURE(shape.tokens);
      const AttentionProblem<T> problem(++seed, 8, shape.kv_heads, shape.head_dim, shape.tokens, shape.window);
      const std::vector<float> scores = problem.template scores<Memory>(reduce);
      CHECK(worst_error(scores, problem.template scores<PlainMemory>(reduce)) < 1e-5);
      CHECK(problem.template scores<Memory>(reduce, 8) == scores);
      const std::vector<float> highest = problem.template scores<Memory>(reduce, 0, Reduce::max);
      CHECK(worst_error(highest, problem.template scores<PlainMemory>(reduce, 0, Reduce::max)) < 1e-5);
    }
  }
}

/// Logits whose exponentials are far beyond what a float can hold.
template <class Memory>
void scores_attention_with_large_logits() {
  AttentionProblem<float> problem(3, 4, 2, 8, 200, 2);
  for (auto q = problem.queries.begin() + problem.first_row * 32; q != problem.queries.end(); ++q) *q *= 300;
  const std::vector<float> scores = problem.scores<Memory>(Reduce::mean);
  const std::vector<float> expected = problem.scores<PlainMemory>(Reduce::mean);
  float sum = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    CHECK(std::abs(scores[i] - expected[i]) < 2e-4F);  // the logits themselves are rounded
    sum += scores[i];
  }
  CHECK(sum == doctest::Approx(1));
}

/// Each sequence of a ragged batch has the scores that it has alone, bit for bit.
template <class Memory, class T>
void scores_ragged_batches() {
  const std::vector<AttentionProblem<T>> problems{{1, 8, 2, 16, 300, 1}, {2, 8, 2, 16, 1, 1},    {3, 8, 2, 16, 40, 11},
                                                  {4, 8, 2, 16, 700, 3}, {5, 8, 2, 16, 1900, 1}, {6, 8, 2, 16, 33, 2}};
  auto context = Memory::make_context();
  std::vector<T> queries;
  std::list<decltype(Memory::upload(context, std::vector<T>()))> key_memory;
  std::list<decltype(Memory::upload(context, std::vector<float>()))> results;
  std::vector<ScoreTask<ContiguousKeys<T>>> tasks;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    const AttentionProblem<T>& problem = problems[i];
    key_memory.push_back(Memory::upload(context, problem.keys));
    results.push_back(
        Memory::upload(context, std::vector<float>(problem.active.size(), AttentionProblem<float>::poison())));
    tasks.push_back({.first_row = std::ssize(queries) / problem.row_width() + problem.first_row,
                     .limits = problem.limits,
                     .key_view = problem.key_view(key_memory.back().span().data()),
                     .keys = problem.active,
                     .over_heads = i % 3 == 0 ? Reduce::mean : Reduce::max,
                     .over_rows = i % 2 == 0 ? Reduce::mean : Reduce::max,
                     .scores = results.back().span()});
    queries.insert(queries.end(), problem.queries.begin(), problem.queries.end());
  }
  auto query_memory = Memory::upload(context, queries);
  attention_scores(context, problems.front().query_rows(query_memory.span().data()), std::ssize(tasks),
                   [&](Index i) { return tasks[static_cast<std::size_t>(i)]; });
  auto result = results.begin();
  for (std::size_t i = 0; i < problems.size(); ++i, ++result) {
    CAPTURE(i);
    CHECK(result->download() == problems[i].template scores<Memory>(tasks[i].over_rows, 0, tasks[i].over_heads));
  }
}

/// Keys by head and queries with a gap after each head.
template <class Memory>
void honours_strides() {
  auto context = Memory::make_context();
  const AttentionProblem<float> problem(3, 4, 2, 8, 30, 2);
  std::vector<float> keys(problem.keys.size()), queries(4 * 4 * 11, problem.poison());
  for (Index p = 0; p < 30; ++p) {
    for (Index head = 0; head < 2; ++head) {
      std::copy_n(problem.keys.begin() + (p * 2 + head) * 8, 8, keys.begin() + (head * 30 + p) * 8);
    }
  }
  for (Index i = 0; i < 4 * 4; ++i) std::copy_n(problem.queries.begin() + i * 8, 8, queries.begin() + i * 11);
  auto query_memory = Memory::upload(context, queries);
  auto key_memory = Memory::upload(context, keys);
  auto scores = Memory::upload(context, std::vector<float>(problem.active.size(), problem.poison()));
  score_one(context, QueryRows<float>{query_memory.span().data(), 44, 11, 4, 8, problem.scale()}, problem.first_row,
            problem.limits, ContiguousKeys<float>{key_memory.span().data(), 8, 240, 2}, problem.active, Reduce::max,
            scores.span());
  CHECK(scores.download() == problem.scores<Memory>(Reduce::max));
}

/// Many heads, and more keys than one part of a split softmax has.
template <class Memory>
void hides_keys_beyond_the_limit() {
  AttentionProblem<float> problem(1, 70, 70, 4, 300, 1);
  problem.limits = {4};
  for (std::size_t i = problem.at(problem.active[4] * 280); i < problem.keys.size(); ++i) {
    problem.keys[i] = problem.poison();
  }
  const std::vector<float> scores = problem.template scores<Memory>(Reduce::mean);
  CHECK(worst_error(scores, problem.scores<PlainMemory>(Reduce::mean)) < 1e-5);
  CHECK(std::all_of(scores.begin() + 4, scores.end(), [](float score) { return score == 0; }));
}

template <class Memory>
void passes_bad_numbers_on() {
  const auto is_bad = [](float score) { return !std::isfinite(score); };
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const Reduce reduce : {Reduce::mean, Reduce::max}) {
      for (const Index tokens : {1, 3, 200}) {
        CAPTURE(tokens);
        AttentionProblem<float> problem(6, 4, 2, 8, tokens, 1);
        std::fill_n(problem.keys.begin() + problem.active[problem.active.size() / 2] * 16, 16, bad);
        CHECK(std::ranges::any_of(problem.template scores<Memory>(reduce), is_bad));
        CHECK(std::ranges::any_of(problem.template scores<Memory>(reduce, 0, Reduce::max), is_bad));
      }
      for (Index row = 0; row < 3; ++row) {
        AttentionProblem<float> problem(7, 4, 2, 8, 40, 3);
        problem.queries[problem.at((problem.first_row + row) * 32)] = bad;
        CHECK(std::ranges::any_of(problem.template scores<Memory>(reduce), is_bad));
        CHECK(std::ranges::any_of(problem.template scores<Memory>(reduce, 0, Reduce::max), is_bad));
      }
    }
  }
}

/// Growable buffers keep their rows and at least double.
template <class Memory, class T>
void grows_buffers() {
  auto context = Memory::make_context();
  using Context = decltype(context);
  typename Context::template Buffer<T> buffer;
  CHECK(buffer.rows().rows == 0);
  buffer.reserve(context, 3, 2);
  CHECK(buffer.rows().rows >= 3);
  CHECK(buffer.rows().width == 2);
  std::vector<T> values;
  for (const float value : {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F}) values.push_back(static_cast<T>(value));
  auto in = Memory::upload(context, values);
  auto out = Memory::upload(context, std::vector<T>(6));
  const std::vector<Index> rows{0, 1, 2};
  copy_rows(context, RowsView<const T>(in.span().data(), 3, 2), std::span<const Index>(rows), buffer.rows(),
            std::span<const Index>(rows));
  const Index before = buffer.rows().rows;
  buffer.reserve(context, before + 1, 2);
  CHECK(buffer.rows().rows >= 2 * before);
  copy_rows(context, RowsView<const T>(buffer.rows()), std::span<const Index>(rows),
            RowsView<T>(out.span().data(), 3, 2), std::span<const Index>(rows));
  CHECK(out.download() == values);
  const T* data = buffer.rows().data;
  buffer.reserve(context, 1, 2);
  CHECK(buffer.rows().data == data);
}

}  // namespace lazyllm::test
