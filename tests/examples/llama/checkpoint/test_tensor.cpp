#include <bit>
#include <cmath>
#include <limits>

#include "examples/llama/base.hpp"
#include "examples/llama/checkpoint/tensor.hpp"
#include "support.hpp"

namespace llama {
namespace {

using namespace testing;

/// IEEE half by its definition.
float reference_half(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const float fraction = static_cast<float>(bits & 1023) / 1024;
  float value = exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
  if (exponent == 31) value = fraction == 0 ? std::numeric_limits<float>::infinity() : std::nanf("");
  return std::copysign(value, (bits & 0x8000) != 0 ? -1.0f : 1.0f);
}

float reference_bfloat16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

/// Converts all 65536 patterns, at an odd address, and compares with `reference`.
template <class Reference>
void check_all_patterns(DType dtype, Reference reference) {
  std::vector<std::uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  const std::string storage = "x" + raw(patterns);
  const Tensor tensor{dtype, {256, 256}, bytes_of(storage).data() + 1};
  std::vector<float> out(65536);
  to_float(tensor, 0, out);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float expected = reference(patterns[i]);
    const bool same = std::isnan(expected)
                          ? std::isnan(out[i])
                          : std::bit_cast<std::uint32_t>(out[i]) == std::bit_cast<std::uint32_t>(expected);
    wrong += same ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("every 16-bit pattern converts to the right float") {
  check_all_patterns(DType::f16, reference_half);
  check_all_patterns(DType::bf16, reference_bfloat16);
}

TEST_CASE("a run of elements starts and ends where it should, aligned or not") {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  for (const std::size_t shift : {0u, 1u, 2u, 3u}) {
    const std::string storage = std::string(shift, 'x') + raw(values);
    const Tensor tensor{DType::f32, {2, 3}, bytes_of(storage).data() + shift};
    std::vector<float> out(3, -1.0f);
    to_float(tensor, 2, std::span(out).first(2));
    CHECK(out == std::vector<float>{3, 4, -1});
  }
}

TEST_CASE("a run outside the tensor is refused") {
  const std::string storage(12, '\0');
  const Tensor tensor{DType::f16, {2, 3}, bytes_of(storage).data()};
  std::vector<float> out(4);
  const auto rejects = [&](Index first) {
    check_rejected<std::invalid_argument>([&] { to_float(tensor, first, out); }, {std::to_string(first), "has 6"});
  };
  rejects(-1);
  rejects(3);
  rejects(7);
  rejects(std::numeric_limits<Index>::max());
  CHECK_NOTHROW(to_float(tensor, 2, out));
  CHECK_NOTHROW(to_float(tensor, 6, {}));
}

TEST_CASE("rows and columns of a tensor are views of it") {
  const std::vector<float> values = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const Tensor whole{DType::f32, {3, 4}, reinterpret_cast<const std::byte*>(values.data())};
  const auto read = [](const Tensor& tensor, Index first, std::size_t count) {
    std::vector<float> out(count);
    to_float(tensor, first, out);
    return out;
  };
  const Tensor rows = rows_of(whole, 1, 2);
  CHECK(rows.shape == std::vector<Index>{2, 4});
  CHECK(read(rows, 0, 8) == std::vector<float>{4, 5, 6, 7, 8, 9, 10, 11});
  const Tensor columns = columns_of(whole, 1, 2);
  CHECK(columns.shape == std::vector<Index>{3, 2});
  CHECK(read(columns, 0, 2) == std::vector<float>{1, 2});
  CHECK(read(columns, 5, 1) == std::vector<float>{10});
  CHECK(read(rows_of(columns, 2, 1), 0, 2) == std::vector<float>{9, 10});
  CHECK(read(columns_of(columns, 1, 1), 1, 1) == std::vector<float>{6});
  CHECK_THROWS_WITH_AS(read(columns, 1, 2), "elements 1 to 1 + 2 of a tensor with gaps between its rows of 2",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(rows_of(whole, 2, 2), "rows 2 to 2 + 2 of a tensor that has 3", std::invalid_argument);
  CHECK_THROWS_WITH_AS(columns_of(whole, 3, 2), "columns 3 to 3 + 2 of a tensor that has 4", std::invalid_argument);
}

}  // namespace
}  // namespace llama
