#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "lazyllm/concepts.hpp"
#include "lazyllm/importance/attention_score.hpp"

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
      for (T& value : source) value = static_cast<T>(static_cast<float>(random() % 512));
      std::vector<T> expected(static_cast<std::size_t>(target_rows * width), static_cast<T>(-1));
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
      copy_rows(context, Rows<const T>(in.span().data(), source_rows, width, width + gap), std::span<const Index>(from),
                Rows<T>(out.span().data(), target_rows, width), std::span<const Index>(to));
      CHECK(out.download() == expected);
    }
  }
}

/// Selection by a stable sort of all scores.
inline std::vector<Index> sorted_selection(const Selection& selection, Index tokens, Positions active,
                                           const std::vector<float>& scores) {
  std::vector<Index> order(active.size());
  std::iota(order.begin(), order.end(), 0);
  const auto is_protected = [&](Index i) { return selection.protects(active[static_cast<std::size_t>(i)], tokens); };
  const auto score = [&](Index i) { return scores[static_cast<std::size_t>(i)]; };
  std::ranges::stable_sort(order, [&](Index a, Index b) { return score(a) > score(b); });
  std::stable_partition(order.begin(), order.end(), is_protected);
  const double total = std::accumulate(scores.begin(), scores.end(), 0.0);
  double held = 0;
  std::vector<Index> kept;
  for (const Index i : order) {
    const bool enough = selection.kind == Selection::Kind::count ? std::ssize(kept) >= selection.count
                                                                 : held >= selection.mass * total - 1e-9;
    if (enough && !is_protected(i)) break;
    kept.push_back(i);
    held += score(i);
  }
  std::ranges::sort(kept);
  return kept;
}

template <class Memory, class Context>
std::optional<std::vector<Index>> selected(Context& context, const Selection& selection, Index tokens, Positions active,
                                           const std::vector<float>& scores) {
  auto memory = Memory::upload(context, scores);
  std::vector<Index> kept{-7};  // select appends
  const Index bad = select(context, selection, tokens, active, memory.span(), kept);
  if (bad >= 0) return std::nullopt;
  CHECK(kept.front() == -7);
  kept.erase(kept.begin());
  return kept;
}

template <class Memory>
void selects_small_cases() {
  using Kept = std::vector<Index>;
  auto context = Memory::make_context();
  const std::vector<Position> active{0, 2, 3, 7, 8, 9};
  const std::vector<float> scores{0.1F, 0.3F, 0.05F, 0.3F, 0.2F, 0.05F};
  const auto kept = [&](const Selection& selection) {
    return selected<Memory>(context, selection, 10, active, scores).value();
  };
  using enum Selection::Kind;
  // The last token is always there and counts; equal scores go to the smaller position.
  CHECK(kept({.kind = count, .count = 1}) == Kept{5});
  CHECK(kept({.kind = count, .count = 2}) == Kept{1, 5});
  CHECK(kept({.kind = count, .count = 3}) == Kept{1, 3, 5});
  CHECK(kept({.kind = count, .count = 4}) == Kept{1, 3, 4, 5});
  CHECK(kept({.kind = count, .count = 6}) == Kept{0, 1, 2, 3, 4, 5});
  CHECK(kept({.kind = count, .count = 3, .protect_first = 1}) == Kept{0, 1, 5});
  CHECK(kept({.kind = count, .count = 3, .protect_first = 3}) == Kept{0, 1, 5});
  CHECK(kept({.kind = count, .count = 3, .protect_last = 2}) == Kept{1, 4, 5});
  // Position 6 of the last four is not active any more.
  CHECK(kept({.kind = count, .count = 1, .protect_last = 4}) == Kept{3, 4, 5});
  const std::vector<std::uint8_t> mask{0, 0, 0, 1};
  CHECK(kept({.kind = count, .count = 3, .protect_mask = mask}) == Kept{1, 2, 5});
  CHECK(kept({.kind = count, .count = 2, .protect_first = 1, .protect_last = 2, .protect_mask = mask}) ==
        Kept{0, 2, 4, 5});
  CHECK(kept({.kind = mass, .mass = 0.01}) == Kept{5});
  CHECK(kept({.kind = mass, .mass = 0.2}) == Kept{1, 5});
  CHECK(kept({.kind = mass, .mass = 0.5}) == Kept{1, 3, 5});
  CHECK(kept({.kind = mass, .mass = 0.5, .protect_first = 1}) == Kept{0, 1, 3, 5});
  CHECK(kept({.kind = mass, .mass = 0.7, .protect_last = 2}) == Kept{1, 3, 4, 5});
  CHECK(kept({.kind = mass, .mass = 1}) == Kept{0, 1, 2, 3, 4, 5});
}

template <class Memory>
void selects_equal_scores() {
  auto context = Memory::make_context();
  std::vector<Position> active(50);
  std::iota(active.begin(), active.end(), 0);
  for (const float value : {0.0F, 0.02F}) {
    const std::vector<float> scores(50, value);
    for (Index count = 1; count <= 50; ++count) {
      std::vector<Index> expected(static_cast<std::size_t>(count - 1));
      std::iota(expected.begin(), expected.end(), 0);
      expected.push_back(49);
      const Selection selection{.kind = Selection::Kind::count, .count = count};
      CHECK(selected<Memory>(context, selection, 50, active, scores) == expected);
    }
  }
}

template <class Memory>
void selects_like_a_stable_sort() {
  auto context = Memory::make_context();
  std::mt19937 random(5);
  for (int round = 0; round < 1500; ++round) {
    CAPTURE(round);
    const auto tokens = static_cast<Index>(random() % (round % 10 == 0 ? 3000 : 40) + 1);
    std::vector<Position> active;
    std::vector<float> scores;
    const unsigned levels = round % 2 == 0 ? 5 : 1U << 20;  // few levels make many ties
    for (Position p = 0; p < tokens; ++p) {
      if (p + 1 < tokens && random() % 4 == 0) continue;
      active.push_back(p);
      // Multiples of a power of two, so that sums are exact in any order.
      scores.push_back(static_cast<float>(random() % levels) * 0x1p-20F);
    }
    const auto n = std::ssize(active);
    std::vector<std::uint8_t> mask(random() % 3 == 0 ? random() % 30 : 0);
    for (auto& entry : mask) entry = random() % 4 == 0;
    Selection selection{.kind = random() % 2 == 0 ? Selection::Kind::count : Selection::Kind::mass,
                        .count = static_cast<Index>(random()) % n + 1,
                        .mass = static_cast<double>(random() % 1000 + 1) / 1000};
    if (random() % 2 == 0) selection.protect_first = static_cast<Index>(random() % 5);
    if (random() % 2 == 0) selection.protect_last = static_cast<Index>(random() % 5) + 1;
    selection.protect_mask = mask;
    CHECK(selected<Memory>(context, selection, tokens, active, scores) ==
          sorted_selection(selection, tokens, active, scores));
  }
}

template <class Memory>
void selects_only_finite_scores() {
  auto context = Memory::make_context();
  const std::vector<Position> active{1, 4, 5, 9};
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (std::size_t place = 0; place < active.size(); ++place) {
      for (const auto kind : {Selection::Kind::count, Selection::Kind::mass}) {
        std::vector<float> scores(active.size(), 0.25F);
        scores[place] = bad;
        auto memory = Memory::upload(context, scores);
        std::vector<Index> kept;
        const Selection selection{.kind = kind, .count = 2, .mass = 0.5, .protect_first = 2};
        CHECK(select(context, selection, 10, active, memory.span(), kept) == static_cast<Index>(place));
      }
    }
  }
}

template <class Memory>
void gathers_scores() {
  auto context = Memory::make_context();
  auto scores = Memory::upload(context, std::vector<float>{10, 11, 12, 13});
  auto target = Memory::upload(context, std::vector<float>(3, -1));
  gather_scores(context, scores.span(), std::vector<Index>{0, 2}, target.span());
  CHECK(target.download() == std::vector<float>{10, 12, -1});
}

template <class Memory>
void makes_random_scores() {
  auto context = Memory::make_context();
  const std::vector<Position> active{0, 3, 4, 900};
  for (const std::uint64_t seed : {0ULL, 5ULL, ~0ULL}) {
    auto scores = Memory::upload(context, std::vector<float>(4));
    random_scores(context, seed, active, scores.span());
    std::vector<float> expected;
    for (const Position p : active) expected.push_back(random_score(seed, p));
    CHECK(scores.download() == expected);
  }
}

template <class Memory>
void accumulates_and_pools_scores() {
  auto context = Memory::make_context();
  auto scores = Memory::upload(context, std::vector<float>{1, 5, 2, 0});
  auto sums = Memory::upload(context, std::vector<float>(4, std::numeric_limits<float>::quiet_NaN()));
  accumulate_scores(context, scores.span(), sums.span(), true);
  accumulate_scores(context, scores.span(), sums.span(), false);
  CHECK(scores.download() == std::vector<float>{2, 10, 4, 0});
  CHECK(sums.download() == std::vector<float>{2, 10, 4, 0});
  pool_scores(context, 3, scores.span());
  CHECK(scores.download() == std::vector<float>{10, 10, 10, 4});
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
  const std::vector<T> values{static_cast<T>(1), static_cast<T>(2), static_cast<T>(3),
                              static_cast<T>(4), static_cast<T>(5), static_cast<T>(6)};
  auto in = Memory::upload(context, values);
  auto out = Memory::upload(context, std::vector<T>(6));
  const std::vector<Index> rows{0, 1, 2};
  copy_rows(context, Rows<const T>(in.span().data(), 3, 2), std::span<const Index>(rows), buffer.rows(),
            std::span<const Index>(rows));
  const Index before = buffer.rows().rows;
  buffer.reserve(context, before + 1, 2);
  CHECK(buffer.rows().rows >= 2 * before);
  copy_rows(context, Rows<const T>(buffer.rows()), std::span<const Index>(rows), Rows<T>(out.span().data(), 3, 2),
            std::span<const Index>(rows));
  CHECK(out.download() == values);
  const T* data = buffer.rows().data;
  buffer.reserve(context, 1, 2);
  CHECK(buffer.rows().data == data);
}

}  // namespace lazyllm::test
