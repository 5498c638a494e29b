#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "lazyllm/engine/positions.hpp"

/// What the micro benchmarks share. `X_plain` is the obvious way to do what `X` does, `X_memory` moves the same bytes
/// and does nothing else; `bench/make_tables.py` sets them side by side.
namespace lazyllm::bench {

/// `count` values in [0, 1). Only the first 2^20 are drawn, the others repeat them.
template <class T>
std::vector<T> random_values(Index count) {
  constexpr Index drawn = 1 << 20;
  std::mt19937 random(1);
  std::vector<T> values(static_cast<std::size_t>(count));
  for (Index i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    values[at] = i < drawn ? static_cast<T>(static_cast<float>(random() >> 8) * 0x1p-24F) : values[at - drawn];
  }
  return values;
}

/// `count` of the numbers 0 … `below` - 1, drawn at random, ascending.
template <class Number>
std::vector<Number> random_subset(Index below, Index count) {
  std::vector<Number> all(static_cast<std::size_t>(below));
  std::iota(all.begin(), all.end(), Number{0});
  std::vector<Number> drawn;
  std::sample(all.begin(), all.end(), std::back_inserter(drawn), count, std::mt19937(2));
  return drawn;
}

/// 1k to 128k tokens.
inline const std::vector<std::int64_t> token_counts{1 << 10, 1 << 12, 1 << 14, 1 << 17};

/// Reports `bytes`, the fewest that one iteration must read and write.
inline void report_bytes(benchmark::State& state, Index bytes) { state.SetBytesProcessed(state.iterations() * bytes); }

}  // namespace lazyllm::bench
