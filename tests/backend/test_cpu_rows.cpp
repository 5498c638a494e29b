#include <doctest/doctest.h>

#include <Eigen/Core>
#include <type_traits>
#include <vector>

#include "lazyllm/backend/cpu/rows.hpp"

using namespace lazyllm;

TEST_CASE("as_matrix: the rows with their stride, to read and to write") {
  std::vector<float> memory(4 * 6, -1.0F);
  const RowsView<float> rows(memory.data(), 4, 3, 6);
  auto matrix = cpu::as_matrix(rows);
  CHECK(matrix.rows() == 4);
  CHECK(matrix.cols() == 3);
  for (Index r = 0; r < 4; ++r) {
    for (Index c = 0; c < 3; ++c) matrix(r, c) = static_cast<float>(10 * r + c);
  }
  CHECK(&matrix(2, 1) == memory.data() + 2 * 6 + 1);
  for (Index r = 0; r < 4; ++r) {
    for (Index c = 0; c < 6; ++c) {
      CHECK(memory[static_cast<std::size_t>(6 * r + c)] == (c < 3 ? static_cast<float>(10 * r + c) : -1.0F));
    }
  }
  const auto read = cpu::as_matrix(RowsView<const float>(rows.subrows(1, 2)));
  CHECK(read.rows() == 2);
  CHECK(read(1, 2) == 22);
  CHECK((read * Eigen::Vector3f::Ones()).isApprox(Eigen::Vector2f(33, 63)));
  static_assert(std::is_assignable_v<decltype(matrix(0, 0)), float>);
  static_assert(!std::is_assignable_v<decltype(read(0, 0)), float>);
  std::vector<Eigen::half> halves(6, Eigen::half(2.0F));
  CHECK(cpu::as_matrix(RowsView<Eigen::half>(halves.data(), 2, 3)).cast<float>().sum() == 12);
}
