#include <doctest/doctest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "lazyllm/lazyllm.hpp"

using namespace lazyllm;

namespace {

using Pool = RowPool<cpu::Context, float>;
using Cache = AuxCache<cpu::PooledStorage<float>>;

void park(cpu::Context& context, Cache& cache, Positions tokens, float value) {
  const std::vector<float> row(static_cast<std::size_t>(cache.width()), value);
  const std::vector<Index> from(tokens.size(), 0);
  cache.park(context, RowsView<const float>(row.data(), 1, cache.width()), from, tokens);
}

}  // namespace

TEST_CASE("pool: sequences share it and give everything back") {
  cpu::Context context;
  const auto pool = std::make_shared<Pool>(4);
  {
    Cache a{cpu::PooledStorage<float>(pool)};
    Cache b{cpu::PooledStorage<float>(pool)};
    park(context, a, std::vector<Position>{0, 7}, 1);
    park(context, b, std::vector<Position>{0, 1, 2}, 2);
    CHECK(pool->rows_in_use() == 5);
    {
      const Cache fork = b.fork(context);
      CHECK(pool->rows_in_use() == 8);
    }
    CHECK(pool->rows_in_use() == 5);
    b.truncate(1);
    CHECK(pool->rows_in_use() == 3);
    std::vector<float> hidden(8);
    const std::vector<Index> to{0, 1};
    a.revive(context, std::vector<Position>{0, 7}, RowsView<float>(hidden.data(), 2, 4), to);
    CHECK(hidden == std::vector<float>(8, 1.0F));
    CHECK(pool->rows_in_use() == 1);
    b = std::move(a);
    CHECK(pool->rows_in_use() == 1);  // b's row now belongs to a
    park(context, b, std::vector<Position>{3}, 3);
    CHECK(pool->rows_in_use() == 2);
    const Cache moved = std::move(b);
    CHECK(pool->rows_in_use() == 2);
  }
  CHECK(pool->rows_in_use() == 0);
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
  CHECK(pool->rows_in_use() == 16);
}

TEST_CASE("pool: a fork for which the pool must grow has the rows of its parent") {
  cpu::Context context;
  Cache cache{cpu::PooledStorage<float>(1)};
  std::vector<Position> tokens(16);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<float> rows(tokens.begin(), tokens.end());
  const std::vector<Index> places(tokens.begin(), tokens.end());
  cache.park(context, RowsView<const float>(rows.data(), 16, 1), places, tokens);
  Cache fork = cache.fork(context);
  std::vector<float> hidden(16, -1.0F);
  fork.revive(context, tokens, RowsView<float>(hidden.data(), 16, 1), places);
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
  CHECK(pool.rows_in_use() == 40);
}

TEST_CASE("storage: a width below 1 is refused") {
  CHECK_THROWS_WITH_AS(cpu::DenseStorage<float>(0), "lazyllm: DenseStorage: width 0 is out of range, at least 1",
                       invalid_argument);
  CHECK_THROWS_WITH_AS(cpu::PooledStorage<float>(Index{-3}), "lazyllm: RowPool: width -3 is out of range, at least 1",
                       invalid_argument);
}
