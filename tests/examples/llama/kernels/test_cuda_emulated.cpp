#include "support/cuda_emulation.hpp"
//
#include <thread>

// The same tests as on a device.
#include "cuda_cases.hpp"
#include "examples/llama/kernels/cuda/launch_graphs.hpp"
#include "support/causal_attention_emulation.hpp"

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

template <class T>
void cudnn_cases() {
  EmulatedCudnn& cudnn = emulated_cudnn();
  cudnn = {};
  const TestSequence prompt{range(0, 256), range(0, 256)}, longer{range(0, 300), range(0, 300)};
  check_attention<T>({{4, 2, 32}, {prompt, longer}});
  CHECK(cudnn.runs == 2);
  // Other plans are the own kernels', which tests of their own check with more heads.
  check_attention<T>({{2, 1, 32}, {{range(0, 255), range(0, 255)}}});
  check_attention<T>({{2, 1, 32}, {{range(0, 300), range(44, 300)}}});
  check_attention<T>({{2, 1, 32}, {prompt}, 16});
  CHECK(cudnn.runs == 2);
  cudnn.has_kernels = false;
  check_attention<T>({{2, 1, 32}, {prompt}});
}

TEST_CASE("cuDNN computes the attention of whole prompts of at least 256 tokens, where it has a kernel") {
  cudnn_cases<__half>();
  cudnn_cases<__nv_bfloat16>();
}

#ifndef LAZYLLM_THREAD_SANITIZER  // whose threads of a block are those of the main thread alone
TEST_CASE("where cuDNN cannot be set up the own kernels do its work") {
  emulated_cudnn() = {.missing = true};
  std::thread([] {  // a thread sets it up once
    check_attention<__half>({{4, 2, 32}, {{range(0, 256), range(0, 256)}}});
  })
      .join();
  CHECK(emulated_cudnn().runs == 0);
}
#endif

}  // namespace llama::test
