#pragma once

#include <algorithm>
#include <cstdlib>

namespace lazyllm::test {

/// `count` random runs times the factor in the environment variable LAZYLLM_TEST_RUNS: sanitizers run fewer.
inline unsigned runs(unsigned count) {
  const char* factor = std::getenv("LAZYLLM_TEST_RUNS");
  return factor == nullptr ? count : std::max(1u, static_cast<unsigned>(count * std::atof(factor)));
}

}  // namespace lazyllm::test
