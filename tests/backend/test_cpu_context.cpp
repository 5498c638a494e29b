#include <doctest/doctest.h>

#include <Eigen/Core>
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <span>
#include <vector>

#include "lazyllm/backend/cpu/context.hpp"

using namespace lazyllm;

TEST_CASE("cpu context: chunks cover the range once, and are the same for any number of threads") {
  for (const Index count : {0, 1, 9, 10, 11, 1000}) {
    for (const Index grain : {1, 10, 64}) {
      std::vector<Index> expected;  // the chunk's first and last at every place
      for (Index i = 0; i < count; ++i) {
        expected.push_back(i / grain * grain * 10000 + std::min(count, i / grain * grain + grain));
      }
      for (const int threads : {1, 2, 3, 5}) {
        cpu::Context context(threads);
        std::vector<Index> seen(static_cast<std::size_t>(count), 0);
        std::atomic<Index> calls = 0;
        context.for_chunks(count, grain, [&](Index first, Index last) {
          ++calls;
          for (Index i = first; i < last; ++i) seen[static_cast<std::size_t>(i)] += first * 10000 + last;
        });
        CHECK(seen == expected);
        CHECK(calls == (count + grain - 1) / grain);
      }
    }
  }
}

TEST_CASE("cpu context: scratch memory is aligned for Eigen and grows only when it must") {
  cpu::Context context;
  const float* data = context.scratch(100).data();
  CHECK(reinterpret_cast<std::uintptr_t>(data) % EIGEN_MAX_STATIC_ALIGN_BYTES == 0);
  CHECK(context.scratch(10).data() == data);
  CHECK(context.scratch(10).size() == 10);
  CHECK(context.scratch(1000).size() == 1000);
}

TEST_CASE("cpu context: needs a thread") {
  CHECK(cpu::Context(2).threads() == 2);
  CHECK_THROWS_WITH_AS(cpu::Context(0), "lazyllm: cpu::Context: threads 0 is out of range, at least 1",
                       invalid_argument);
}

TEST_CASE("cpu context: scratch memory that cannot grow stays what it was") {
  cpu::Context context;
  const std::span<float> before = context.scratch(100);
  CHECK_THROWS_AS(context.scratch(Index{1} << 60), std::bad_alloc);
  // Freed memory would be handed out again: to an array of the same size first of all.
  cpu::Context other;
  const std::span<float> others = other.scratch(100);
  const std::span<float> after = context.scratch(100);
  CHECK(after.data() == before.data());
  CHECK(after.data() != others.data());
  others[0] = 1;
  after[0] = 2;
  CHECK(others[0] == 1);
}
