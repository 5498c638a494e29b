#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace lazyllm::test {

/// `count` random runs times the factor in the environment variable LAZYLLM_TEST_RUNS: sanitizers run fewer.
inline unsigned runs(unsigned count) {
  const char* factor = std::getenv("LAZYLLM_TEST_RUNS");
  return factor == nullptr ? count : std::max(1u, static_cast<unsigned>(count * std::atof(factor)));
}

/// Whether case `number` of a grid of `count` is run: all of them, or with a factor below 1 `runs(count)` that lie
/// evenly.
inline bool runs_case(unsigned number, unsigned count) {
  const std::uint64_t some = std::min(runs(count), count);
  return number * some / count != (number + 1) * some / count;
}

}  // namespace lazyllm::test
