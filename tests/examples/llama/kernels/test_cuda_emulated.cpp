#include "support/cuda_emulation.hpp"
// The same tests as on a device.
#include "cuda_cases.hpp"
#include "examples/llama/kernels/cuda/launch_graphs.hpp"

namespace llama::test {

TEST_CASE("graphs are let go of for new ones only when none runs") {
  const auto& counters = lazyllm::test::cuda_emulation::counters();
  auto context = CudaMemory::make_context();
  LaunchGraphs<int> graphs;
  const auto run = [&](std::uint64_t key) { graphs.run(context, {key}, [] { return 0; }); };
  for (std::uint64_t key = 0; key < 1024; ++key) run(key);
  run(0);
  CHECK(counters.graph_launches == 1);
  const int waits = counters.waits;
  run(1023);
  CHECK(counters.waits == waits);
  run(1024);
  CHECK(counters.waits == waits + 1);
}

}  // namespace llama::test
