#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "lazyllm/lazyllm.hpp"
#include "support/plain_scores.hpp"

namespace lazyllm::test {

/// The CPU backend as tests for any backend see it.
template <int default_threads = 1>
struct CpuMemory {
  static cpu::Context make_context(int threads = default_threads) { return cpu::Context(threads); }

  template <class T>
  static HostArray<T> upload(cpu::Context&, std::vector<T> values) {
    return {std::move(values)};
  }

  /// Copies `values` to `target`.
  template <class T>
  static void write(cpu::Context&, const std::vector<T>& values, T* target) {
    std::ranges::copy(values, target);
  }

  /// The elements of `rows`, which have no gaps.
  template <class T>
  static std::vector<T> read(cpu::Context&, RowsView<T> rows) {
    return {rows.data, rows.data + rows.rows * rows.width};
  }
};

}  // namespace lazyllm::test
