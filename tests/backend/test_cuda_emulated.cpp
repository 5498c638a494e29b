#include "support/cuda_emulation.hpp"
// The same tests as on a device; and what only the emulation can make happen.
#include "backend/cuda_cases.hpp"

namespace lazyllm::test {
namespace emulation = cuda_emulation;

TEST_CASE("emulation: threads that wait for ever are reported") {
  CHECK_THROWS_AS(emulation::run_block(32,
                                       [] {
                                         if (threadIdx.x < 7) __syncthreads();
                                         if (threadIdx.x >= 7) emulation::exchange(0);
                                       }),
                  std::logic_error);
}

TEST_CASE("cuda: no allocation for work that is no larger than before, and one copy to the host for a batch") {
  auto context = CudaMemory::make_context();
  std::mt19937 random(8);
  const SelectionProblem a(random, 300, 1U << 20);
  const SelectionProblem b(random, 300, 1U << 20);
  auto scores_a = CudaMemory::upload(context, a.scores);
  auto scores_b = CudaMemory::upload(context, b.scores);
  const std::vector<SelectionTask> tasks{{a.selection, a.tokens, a.active, scores_a.span()},
                                         {b.selection, b.tokens, b.active, scores_b.span()}};
  KeptTokens kept;
  const auto work = [&] {
    pool_scores(context, 3, scores_a.span());
    CHECK_FALSE(select(context, std::span<const SelectionTask>(tasks), kept));
    gather_scores(context, scores_a.span(), kept.of(0), scores_b.span());
  };
  work();
  const int allocations = emulation::allocations();
  const int copies = emulation::copies_to_host();
  for (int round = 0; round < 20; ++round) work();
  CHECK(emulation::allocations() == allocations);
  CHECK(emulation::copies_to_host() == copies + 20);
}

TEST_CASE("cuda: out of memory is a cuda_error, and a buffer that cannot grow stays as it was") {
  auto context = CudaMemory::make_context();
  cuda::Context::Buffer<float> buffer;
  buffer.reserve(context, 2, 3);
  const float* const data = buffer.rows().data;
  emulation::fail_allocation_after(0);
  CHECK_THROWS_WITH_AS(buffer.reserve(context, 3, 3), "lazyllm: cudaMallocAsync of 48 bytes: out of memory",
                       cuda_error);
  CHECK(buffer.rows().data == data);
  CHECK(buffer.rows().rows == 2);
  buffer.reserve(context, 3, 3);
  CHECK(buffer.rows().rows == 4);
  emulation::fail_allocation_after(-1);
}

}  // namespace lazyllm::test
