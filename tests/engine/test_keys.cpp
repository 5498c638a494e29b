#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "lazyllm/engine/contiguous_keys.hpp"
#include "lazyllm/engine/paged_keys.hpp"
#include "lazyllm/engine/queries.hpp"
#include "lazyllm/engine/rows.hpp"

using namespace lazyllm;

TEST_CASE("views: an element lies where the strides say") {
  const std::vector<float> memory(1000);
  const float* data = memory.data();
  const ContiguousKeys<float> contiguous{data, 40, 9, 4};
  CHECK(contiguous.key(0, 0) == data);
  CHECK(contiguous.key(7, 3) == data + 7 * 40 + 3 * 9);
  const std::vector<std::int32_t> pages{5, 0, 2};
  const PagedKeys<float> paged{data, pages.data(), 4, 100, 20, 6, 3};
  CHECK(paged.key(0, 0) == data + 500);
  CHECK(paged.key(3, 2) == data + 500 + 3 * 20 + 2 * 6);
  CHECK(paged.key(4, 1) == data + 6);
  CHECK(paged.key(10, 1) == data + 200 + 2 * 20 + 6);
  const QueryRows<float> queries{data, 64, 16, 4, 16, 1};
  CHECK(queries.query(3, 2) == data + 3 * 64 + 2 * 16);
}

TEST_CASE("rows: a view of some rows keeps the stride") {
  std::vector<float> memory(60);
  const RowsView<float> rows(memory.data(), 6, 7, 10);
  CHECK(rows.row(2) == memory.data() + 20);
  const RowsView<const float> some = rows.subrows(2, 3);
  CHECK(some.data == memory.data() + 20);
  CHECK(some.rows == 3);
  CHECK(some.width == 7);
  CHECK(some.row(1) == memory.data() + 30);
  CHECK(RowsView<float>(memory.data(), 6, 10).stride == 10);
}
