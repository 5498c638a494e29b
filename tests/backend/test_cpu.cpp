#include <Eigen/Core>
#include <atomic>
#include <string>

#include "backend/conformance.hpp"
#include "lazyllm/lazyllm.hpp"
#include "support/cpu_memory.hpp"

using namespace lazyllm;
using namespace lazyllm::test;

static_assert(Backend<cpu::Context>);

TEST_CASE("cpu: copies rows") {
  copies_rows<CpuMemory<1>, float>();
  copies_rows<CpuMemory<3>, float>();
  copies_rows<CpuMemory<2>, Eigen::bfloat16>();
  copies_rows<CpuMemory<2>, Eigen::half>();
}
TEST_CASE("cpu: selects small cases") { selects_small_cases<CpuMemory<1>>(); }
TEST_CASE("cpu: selects equal scores") { selects_equal_scores<CpuMemory<1>>(); }
TEST_CASE("cpu: selects like a stable sort") { selects_like_a_stable_sort<CpuMemory<1>>(); }
TEST_CASE("cpu: selects for ragged batches") { selects_for_ragged_batches<CpuMemory<1>>(); }
TEST_CASE("cpu: selects the same mass in any order") { selects_the_same_mass_in_any_order<CpuMemory<1>>(); }
TEST_CASE("cpu: selects only finite scores") { selects_only_finite_scores<CpuMemory<1>>(); }
TEST_CASE("cpu: scores attention") {
  scores_attention<CpuMemory<2>, float>();
  scores_attention<CpuMemory<1>, Eigen::bfloat16>();
  scores_attention<CpuMemory<1>, Eigen::half>();
}
TEST_CASE("cpu: scores attention with large logits") { scores_attention_with_large_logits<CpuMemory<1>>(); }
TEST_CASE("cpu: scores ragged batches") {
  scores_ragged_batches<CpuMemory<2>, float>();
  scores_ragged_batches<CpuMemory<2>, Eigen::bfloat16>();
}
TEST_CASE("cpu: honours strides of queries and keys") { honours_strides<CpuMemory<1>>(); }
TEST_CASE("cpu: hides keys beyond a row's limit") { hides_keys_beyond_the_limit<CpuMemory<1>>(); }
TEST_CASE("cpu: passes bad numbers on to the scores") { passes_bad_numbers_on<CpuMemory<1>>(); }
TEST_CASE("cpu: selects by drawn and pooled scores") { selects_by_drawn_and_pooled_scores<CpuMemory<1>>(); }
TEST_CASE("cpu: finds bad scores among pooled ones") { finds_bad_scores_among_pooled_ones<CpuMemory<1>>(); }
TEST_CASE("cpu: accumulates scores") { accumulates_scores<CpuMemory<1>>(); }
TEST_CASE("cpu: grows buffers") {
  grows_buffers<CpuMemory<1>, float>();
  grows_buffers<CpuMemory<1>, Eigen::bfloat16>();
}

TEST_CASE("cpu: chunks cover the range once, and are the same for any number of threads") {
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

TEST_CASE("cpu: scratch memory is aligned for Eigen and grows only when it must") {
  cpu::Context context;
  const float* data = context.scratch(100).data();
  CHECK(reinterpret_cast<std::uintptr_t>(data) % EIGEN_MAX_STATIC_ALIGN_BYTES == 0);
  CHECK(context.scratch(10).data() == data);
  CHECK(context.scratch(10).size() == 10);
  CHECK(context.scratch(1000).size() == 1000);
}

TEST_CASE("cpu: a context needs a thread") {
  CHECK(cpu::Context(2).threads() == 2);
  CHECK_THROWS_WITH_AS(cpu::Context(0), "lazyllm: cpu::Context: threads 0 is out of range, at least 1",
                       invalid_argument);
}
