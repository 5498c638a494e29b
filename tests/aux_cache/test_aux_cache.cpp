#include <doctest/doctest.h>

#include <Eigen/Core>
#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "lazyllm/lazyllm.hpp"

using namespace lazyllm;

#define LAZYLLM_STORAGES                                                                                             \
  cpu::OwnStorage<float>, cpu::OwnStorage<Eigen::bfloat16>, cpu::OwnStorage<Eigen::half>, cpu::PooledStorage<float>, \
      cpu::PooledStorage<Eigen::bfloat16>, cpu::PooledStorage<Eigen::half>

namespace {

constexpr Index width = 5;

/// An Aux Cache beside a dictionary of rows as bytes: NaNs and negative zeros count too.
template <class Storage>
struct Checked {
  using T = typename Storage::value_type;
  using Row = std::vector<unsigned char>;

  void park(cpu::Context& context, const std::vector<Position>& tokens, std::mt19937& random) {
    // Each token's row lies somewhere else in the matrix than its place in the list.
    const std::size_t n = tokens.size();
    std::vector<unsigned char> bytes(2 * n * row_bytes);
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
    std::vector<T> hidden(2 * n * width);
    std::memcpy(static_cast<void*>(hidden.data()), bytes.data(), bytes.size());
    std::vector<Index> from;
    for (std::size_t i = 0; i < n; ++i) {
      from.push_back(static_cast<Index>(2 * (n - 1 - i) + 1));
      const auto first = bytes.begin() + from.back() * static_cast<Index>(row_bytes);
      expected[tokens[i]] = Row(first, first + static_cast<Index>(row_bytes));
    }
    cache.acquire(context, tokens);
    std::vector<RowCopy<T>> copies;
    cache.park(RowsView<const T>(hidden.data(), static_cast<Index>(2 * n), width), from, copies);
    copy_rows(context, std::span<const RowCopy<T>>(copies));
    check();
  }

  void revive(cpu::Context& context, const std::vector<Position>& tokens) {
    const std::size_t n = tokens.size();
    std::vector<T> hidden((n + 2) * width);
    std::vector<Index> to;
    for (std::size_t i = 0; i < n; ++i) to.push_back(static_cast<Index>((i + 1) % n + 2));
    std::vector<RowCopy<T>> copies;
    cache.revive(tokens, RowsView<T>(hidden.data(), static_cast<Index>(n + 2), width), to, copies);
    copy_rows(context, std::span<const RowCopy<T>>(copies));
    check();  // revived tokens keep their slots
    for (const Position token : tokens) cache.forget(token);
    for (std::size_t i = 0; i < n; ++i) {
      const T* row = hidden.data() + to[i] * width;
      CHECK(std::memcmp(row, expected.at(tokens[i]).data(), row_bytes) == 0);
      expected.erase(tokens[i]);
    }
    check();
  }

  void truncate(Index tokens) {
    cache.truncate(tokens);
    expected.erase(expected.lower_bound(static_cast<Position>(tokens)), expected.end());
    check();
  }

  void erase(Index first, Index last) {
    cache.erase(first, last);
    std::map<Position, Row> shifted;
    for (auto& [token, row] : expected) {
      if (token < first) shifted[token] = row;
      if (token >= last) shifted[static_cast<Position>(token - (last - first))] = row;
    }
    expected = std::move(shifted);
    check();
  }

  /// Revives everything: the way to see all rows.
  void drain(cpu::Context& context) {
    std::vector<Position> tokens;
    for (const auto& [token, row] : expected) tokens.push_back(token);
    if (!tokens.empty()) revive(context, tokens);
    CHECK(cache.parked_rows() == 0);
  }

  void check() const {
    CHECK(cache.parked_rows() == std::ssize(expected));
    CHECK(cache.parked_bytes() == std::ssize(expected) * static_cast<Index>(row_bytes));
    bool right = true;
    std::set<Index> slots;
    for (Position p = 0; p < 200; ++p) {
      right &= cache.holds(p) == expected.contains(p);
      right &= (cache.slot(p) == AuxCache<Storage>::no_slot) == !cache.holds(p);
      if (cache.holds(p)) slots.insert(cache.slot(p));
    }
    right &= slots.size() == expected.size();
    CHECK(right);
  }

  static constexpr std::size_t row_bytes = width * sizeof(T);
  AuxCache<Storage> cache{Storage(width)};
  std::map<Position, Row> expected = {};
};

}  // namespace

static_assert(AuxStorage<cpu::OwnStorage<float>>);
static_assert(AuxStorage<cpu::PooledStorage<Eigen::bfloat16>>);
static_assert(!std::is_copy_constructible_v<AuxCache<cpu::OwnStorage<float>>>);
static_assert(!std::is_copy_constructible_v<AuxCache<cpu::PooledStorage<float>>>);
static_assert(std::is_nothrow_move_constructible_v<AuxCache<cpu::PooledStorage<float>>>);

TEST_CASE_TEMPLATE("aux cache: a row comes back bit for bit and only once", Storage, LAZYLLM_STORAGES) {
  cpu::Context context;
  std::mt19937 random(1);
  Checked<Storage> test;
  CHECK(test.cache.hidden_size() == width);
  test.check();
  test.park(context, {3, 4, 9}, random);
  test.revive(context, {3, 9});
  test.park(context, {3}, random);
  test.drain(context);
}

TEST_CASE_TEMPLATE("aux cache: rows stay while the storage grows", Storage, LAZYLLM_STORAGES) {
  cpu::Context context;
  std::mt19937 random(2);
  Checked<Storage> test;
  test.cache.reserve(context, 2);
  for (Position p = 3; p < 150; p = 2 * p + 1) test.park(context, {p, static_cast<Position>(p + 1 + p / 2)}, random);
  test.drain(context);
}

TEST_CASE_TEMPLATE("aux cache: random parking, reviving, truncating and erasing", Storage, LAZYLLM_STORAGES) {
  cpu::Context context;
  for (unsigned seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    Checked<Storage> test;
    for (int round = 0; round < 12; ++round) {
      std::vector<Position> parked, absent;
      for (Position p = 0; p < 60; ++p) {
        if (random() % 3 == 0) (test.cache.holds(p) ? parked : absent).push_back(p);
      }
      if (!parked.empty()) test.revive(context, parked);
      if (!absent.empty()) test.park(context, absent, random);
      if (random() % 4 == 0) test.truncate(static_cast<Index>(random() % 70));
      if (random() % 4 == 0) {
        const auto first = static_cast<Index>(random() % 70);
        test.erase(first, first + static_cast<Index>(random() % 20));
      }
    }
    test.drain(context);
  }
}

TEST_CASE_TEMPLATE("aux cache: a fork has rows of its own", Storage, LAZYLLM_STORAGES) {
  cpu::Context context;
  std::mt19937 random(3);
  Checked<Storage> parent;
  parent.park(context, {1, 5, 6}, random);
  Checked<Storage> fork{parent.cache.fork(context), parent.expected};
  fork.check();
  parent.revive(context, {5});
  parent.park(context, {5, 7}, random);  // must not land on the fork's rows
  fork.truncate(6);
  fork.park(context, {8}, random);
  parent.drain(context);
  fork.drain(context);
}

TEST_CASE_TEMPLATE("aux cache: moves hand the rows on and leave an empty cache", Storage, LAZYLLM_STORAGES) {
  cpu::Context context;
  std::mt19937 random(4);
  Checked<Storage> source;
  source.park(context, {2, 4}, random);
  Checked<Storage> target{std::move(source.cache), source.expected};
  target.check();
  source.expected.clear();
  source.check();
  source.park(context, {2}, random);  // a moved-from cache can be used again
  target.cache = std::move(source.cache);
  target.expected = source.expected;
  target.drain(context);
}

TEST_CASE_TEMPLATE("aux cache: an unlinked slot keeps its row until it is linked again or released", Storage,
                   LAZYLLM_STORAGES) {
  cpu::Context context;
  std::mt19937 random(5);
  Checked<Storage> test;
  test.park(context, {2, 4, 6}, random);
  const auto rows = test.expected;
  const Index two = test.cache.unlink(2);
  const Index four = test.cache.unlink(4);
  test.expected.erase(2);
  test.expected.erase(4);
  test.check();
  test.park(context, {2, 7}, random);  // must take neither slot
  CHECK(test.cache.slot(2) != two);
  CHECK(test.cache.slot(2) != four);
  test.cache.link(4, four);
  test.expected[4] = rows.at(4);
  test.cache.release(two);
  test.drain(context);
}

TEST_CASE_TEMPLATE("aux cache: assigned to itself it stays what it was", Storage, LAZYLLM_STORAGES) {
  cpu::Context context;
  std::mt19937 random(6);
  Checked<Storage> test;
  test.park(context, {2, 4}, random);
  auto& same = test.cache;
  test.cache = std::move(same);
  test.drain(context);
}

TEST_CASE_TEMPLATE("aux cache: positions, ranges and slots that are not there are refused and change nothing", Storage,
                   LAZYLLM_STORAGES) {
  using T = typename Storage::value_type;
  cpu::Context context;
  std::mt19937 random(7);
  Checked<Storage> test;
  test.park(context, {2, 4, 6}, random);
  AuxCache<Storage>& cache = test.cache;
  for (const Position absent : {-5, 3, 7, 1000}) {
    CAPTURE(absent);
    CHECK(cache.slot(absent) == AuxCache<Storage>::no_slot);
    CHECK_FALSE(cache.holds(absent));
    std::vector<T> hidden(2 * width);
    std::vector<RowCopy<T>> copies;
    const std::vector<Position> positions{2, absent};
    const std::vector<Index> to{0, 1};
    CHECK_THROWS_AS(cache.revive(positions, RowsView<T>(hidden.data(), 2, width), to, copies), invalid_argument);
    CHECK(copies.empty());
    CHECK_THROWS_AS(cache.unlink(absent), invalid_argument);
    cache.forget(absent);
    test.check();
  }
  CHECK_THROWS_WITH_AS(cache.unlink(3), "lazyllm: AuxCache::unlink: the token at position 3 is not parked",
                       invalid_argument);
  CHECK_THROWS_WITH_AS(cache.truncate(-5), "lazyllm: AuxCache::truncate: -5 tokens is out of range, at least 0",
                       invalid_argument);
  CHECK_THROWS_AS(cache.erase(-1, 2), invalid_argument);
  CHECK_THROWS_AS(cache.erase(4, 3), invalid_argument);
  CHECK_THROWS_AS(cache.release(cache.slot(3)), invalid_argument);
  CHECK_THROWS_AS(cache.release(1 << 20), invalid_argument);
  test.check();
  test.drain(context);
}
