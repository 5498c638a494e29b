#include <doctest/doctest.h>

#include <Eigen/Core>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "lazyllm/engine/contiguous_keys.hpp"
#include "lazyllm/engine/element.hpp"
#include "lazyllm/engine/paged_keys.hpp"
#include "lazyllm/engine/queries.hpp"

using namespace lazyllm;

namespace {

enum class Bits : std::uint16_t {};
struct Opaque {
  std::uint16_t bits;
};

template <template <class> class View, class T>
concept Has = requires {
  typename View<T>;
};

template <class T>
constexpr bool taken = Element<T>&& Has<ContiguousKeys, T>&& Has<PagedKeys, T>&& Has<QueryRows, T>;
static_assert(taken<float> && taken<Eigen::half> && taken<Eigen::bfloat16> && taken<Float16> && taken<BFloat16>);

template <class T>
constexpr bool refused = !Element<T> && !Has<ContiguousKeys, T> && !Has<PagedKeys, T> && !Has<QueryRows, T>;
static_assert(refused<std::uint16_t> && refused<std::int16_t> && refused<std::int8_t> && refused<char16_t> &&
              refused<std::byte> && refused<Bits> && refused<bool> && refused<int> && refused<double> &&
              refused<Opaque> && refused<const float*> && refused<void>);

/// Whether `Named` reads all patterns of 16 bits as `Other`, of the same size, does.
template <class Named, class Other>
bool reads_like() {
  bool equal = true;
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    const auto number = static_cast<float>(Named{pattern});
    const auto expected = static_cast<float>(Eigen::numext::bit_cast<Other>(pattern));
    // A conversion may quieten a signalling NaN.
    equal &= std::isnan(expected) ? std::isnan(number)
                                  : std::bit_cast<std::uint32_t>(number) == std::bit_cast<std::uint32_t>(expected);
  }
  return equal;
}

}  // namespace

TEST_CASE("element: Float16 reads every pattern of bits as a half") { CHECK(reads_like<Float16, Eigen::half>()); }

TEST_CASE("element: BFloat16 reads every pattern of bits as a bfloat16") {
  CHECK(reads_like<BFloat16, Eigen::bfloat16>());
}
