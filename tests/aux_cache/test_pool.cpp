#include <doctest/doctest.h>

#include <Eigen/Core>
#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "lazyllm/lazyllm.hpp"

using namespace lazyllm;

namespace {

using Pool = RowPool<cpu::Context, float>;
using Cache = AuxCache<cpu::PooledStorage<float>>;

/// A context whose buffers have at least `claimed` rows, without memory behind them: more than a free list can hold.
struct ClaimingContext : cpu::Context {
  Index claimed = 0;

  template <class T>
  class Buffer {
   public:
    void reserve(ClaimingContext& context, Index rows, Index) { rows_ = std::max(rows, context.claimed); }
    void check(const ClaimingContext&) const {}
    RowsView<T> rows() const { return {nullptr, rows_, 1}; }

   private:
    Index rows_ = 0;
  };
};

void park(cpu::Context& context, Cache& cache, Positions tokens, RowsView<const float> hidden,
          const std::vector<Index>& from) {
  cache.acquire(context, tokens);
  std::vector<RowCopy<float>> copies;
  cache.park(hidden, from, copies);
  copy_rows(context, std::span<const RowCopy<float>>(copies));
}

void park(cpu::Context& context, Cache& cache, Positions tokens, float value) {
  const std::vector<float> row(static_cast<std::size_t>(cache.hidden_size()), value);
  park(context, cache, tokens, RowsView<const float>(row.data(), 1, cache.hidden_size()),
       std::vector<Index>(tokens.size(), 0));
}

void revive(cpu::Context& context, Cache& cache, Positions tokens, RowsView<float> hidden,
            const std::vector<Index>& to) {
  std::vector<RowCopy<float>> copies;
  cache.revive(tokens, hidden, to, copies);
  copy_rows(context, std::span<const RowCopy<float>>(copies));
  for (const Position token : tokens) cache.forget(token);
}

}  // namespace

TEST_CASE("pool: more slots than any memory has are refused, and the pool stays as it was") {
  cpu::Context context;
  Pool pool(4);
  pool.reserve(context, 3);
  for (const Index slots : {Index{-1}, Index{1} << 59, Index{1} << 62, std::numeric_limits<Index>::max()}) {
    CAPTURE(slots);
    CHECK_THROWS_WITH_AS(pool.reserve(context, slots), doctest::Contains("is out of range 0 to 576460752303423487"),
                         invalid_argument);
    CHECK(pool.rows().rows == 3);
  }
  std::vector<Index> acquired(3);
  pool.acquire(context, acquired);
  CHECK(std::set<Index>(acquired.begin(), acquired.end()) == std::set<Index>{0, 1, 2});
  CHECK_THROWS_AS(pool.release(3), invalid_argument);
  RowPool<cpu::Context, Eigen::half> narrow(1);
  CHECK_THROWS_WITH_AS(narrow.reserve(context, Index{1} << 60), doctest::Contains("0 to 1152921504606846975"),
                       invalid_argument);
  CHECK(narrow.rows().rows == 0);
  cpu::Sequence<float> sequence(2, 4);
  for (const Index tokens : {Index{-1}, Index{1} << 31, Index{1} << 62}) {
    CHECK_THROWS_WITH_AS(sequence.reserve(context, tokens), doctest::Contains("tokens is out of range 0 to 2147483647"),
                         invalid_argument);
  }
}

TEST_CASE("pool: sequences share it and give everything back") {
  cpu::Context context;
  const auto pool = std::make_shared<Pool>(4);
  {
    Cache a{cpu::PooledStorage<float>(pool)};
    Cache b{cpu::PooledStorage<float>(pool)};
    park(context, a, std::vector<Position>{0, 7}, 1);
    park(context, b, std::vector<Position>{0, 1, 2}, 2);
    CHECK(pool->slots_in_use() == 5);
    {
      const Cache fork = b.fork(context);
      CHECK(pool->slots_in_use() == 8);
    }
    CHECK(pool->slots_in_use() == 5);
    b.truncate(1);
    CHECK(pool->slots_in_use() == 3);
    std::vector<float> hidden(8);
    const std::vector<Index> to{0, 1};
    revive(context, a, std::vector<Position>{0, 7}, RowsView<float>(hidden.data(), 2, 4), to);
    CHECK(hidden == std::vector<float>(8, 1.0F));
    CHECK(pool->slots_in_use() == 1);
    b = std::move(a);
    CHECK(pool->slots_in_use() == 0);  // b's row is given back at once
    park(context, b, std::vector<Position>{3}, 3);
    CHECK(pool->slots_in_use() == 1);
    const Cache moved = std::move(b);
    CHECK(pool->slots_in_use() == 1);
  }
  CHECK(pool->slots_in_use() == 0);
}

TEST_CASE("pool: the free list serves before the pool grows") {
  cpu::Context context;
  const auto pool = std::make_shared<Pool>(2);
  Cache cache{cpu::PooledStorage<float>(pool)};
  std::vector<Position> tokens(16);
  std::iota(tokens.begin(), tokens.end(), 0);
  park(context, cache, tokens, 0);
  const Index rows = pool->rows().rows;
  for (int round = 0; round < 50; ++round) {
    cache.truncate(0);
    park(context, cache, tokens, static_cast<float>(round));
  }
  CHECK(pool->rows().rows == rows);
  CHECK(pool->slots_in_use() == 16);
}

TEST_CASE("pool: a fork for which the pool must grow has the rows of its parent") {
  cpu::Context context;
  Cache cache{cpu::PooledStorage<float>(1)};
  std::vector<Position> tokens(16);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<float> rows(tokens.begin(), tokens.end());
  const std::vector<Index> places(tokens.begin(), tokens.end());
  park(context, cache, tokens, RowsView<const float>(rows.data(), 16, 1), places);
  Cache fork = cache.fork(context);
  std::vector<float> hidden(16, -1.0F);
  revive(context, fork, tokens, RowsView<float>(hidden.data(), 16, 1), places);
  CHECK(hidden == rows);
}

TEST_CASE("pool: memory grows with the parked rows, not with the highest position") {
  cpu::Context context;
  const auto pool = std::make_shared<Pool>(2);
  Cache cache{cpu::PooledStorage<float>(pool)};
  park(context, cache, std::vector<Position>{100000}, 0);
  CHECK(pool->rows().rows < 100);
}

TEST_CASE("pool: reserved rows are there at once") {
  cpu::Context context;
  Pool pool(3);
  pool.reserve(context, 40);
  const float* data = pool.rows().data;
  std::vector<Index> rows(40);
  pool.acquire(context, rows);
  CHECK(pool.rows().data == data);
  CHECK(pool.slots_in_use() == 40);
}

TEST_CASE("pool: slots whose free list could not grow with the rows are not lost") {
  ClaimingContext context;
  RowPool<ClaimingContext, float> pool(1);
  std::vector<Index> first(4);
  pool.acquire(context, first);
  CHECK(pool.slots_in_use() == 4);

  context.claimed = Index{1} << 62;
  CHECK_THROWS_AS(pool.reserve(context, 40), std::length_error);
  CHECK(pool.slots_in_use() == 4);

  context.claimed = 0;
  std::vector<Index> rest(36);
  pool.reserve(context, 40);
  pool.acquire(context, rest);
  CHECK(pool.rows().rows == 40);
  CHECK(pool.slots_in_use() == 40);
  std::set<Index> all(first.begin(), first.end());
  all.insert(rest.begin(), rest.end());
  CHECK(all.size() == 40);
  for (const Index slot : all) pool.release(slot);
  CHECK(pool.slots_in_use() == 0);
}

TEST_CASE("storage: a width out of range is refused") {
  CHECK_THROWS_WITH_AS(cpu::OwnStorage<float>(0), "lazyllm: Aux Cache: hidden_size 0 is out of range 1 to 536870911",
                       invalid_argument);
  CHECK_THROWS_WITH_AS(cpu::PooledStorage<float>(Index{-3}),
                       "lazyllm: Aux Cache: hidden_size -3 is out of range 1 to 536870911", invalid_argument);
  CHECK_THROWS_AS(cpu::OwnStorage<float>(Index{1} << 40), invalid_argument);
}

TEST_CASE("storage: a null pool is refused") {
  CHECK_THROWS_WITH_AS(cpu::PooledStorage<float>(nullptr), "lazyllm: PooledStorage: the pool is null, one is needed",
                       invalid_argument);
}
