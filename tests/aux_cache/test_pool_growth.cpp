#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <vector>

#include "lazyllm/aux_cache/storage.hpp"
#include "lazyllm/core/rows.hpp"

using namespace lazyllm;

namespace {

/// A context whose buffers have at least `claimed` rows, without memory behind them: more than a free list can hold.
struct ClaimingContext {
  Index claimed = 0;

  template <class T>
  class Buffer {
   public:
    void reserve(ClaimingContext& context, Index rows, Index) { rows_ = std::max(rows, context.claimed); }
    RowsView<T> rows() const { return {nullptr, rows_, 1}; }

   private:
    Index rows_ = 0;
  };
};

}  // namespace

TEST_CASE("pool: rows whose free list could not grow with them are not lost") {
  ClaimingContext context;
  RowPool<ClaimingContext, float> pool(1);
  std::vector<Index> first(4);
  pool.acquire(context, first);
  CHECK(pool.rows_in_use() == 4);

  context.claimed = Index{1} << 62;
  CHECK_THROWS_AS(pool.reserve(context, 40), std::length_error);
  CHECK(pool.rows_in_use() == 4);

  context.claimed = 0;
  std::vector<Index> rest(36);
  pool.reserve(context, 40);
  pool.acquire(context, rest);
  CHECK(pool.rows().rows == 40);
  CHECK(pool.rows_in_use() == 40);
  std::set<Index> all(first.begin(), first.end());
  all.insert(rest.begin(), rest.end());
  CHECK(all.size() == 40);
  for (const Index row : all) pool.release(row);
  CHECK(pool.rows_in_use() == 0);
}
