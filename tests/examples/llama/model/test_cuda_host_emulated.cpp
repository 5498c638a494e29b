#include "support/llama_cuda_emulation.hpp"
// The device's code, compiled for the emulation.
#include "examples/llama/model/cuda/model_bf16.cu"
#include "examples/llama/model/cuda/model_f16.cu"
#include "examples/llama/model/cuda/model_f32.cu"
// The same tests as on a device; and what only the emulation can make happen.
#include "tests/examples/llama/model/cuda_host_cases.hpp"

namespace llama::test {
namespace emulation = lazyllm::test::cuda_emulation;

TEST_CASE("CUDA host: 12 random prompts and schedules with revivals give the CPU's kept sets and logits") {
  check_random_runs(12);
}

TEST_CASE("CUDA host: tensor-core attention gives the CPU's logits, of dense and pruned runs") {
  const std::size_t before = emulation::tensor_products;
  check_runs_in_16_bits();
  CHECK(emulation::tensor_products > before);
}

TEST_CASE("CUDA host: prompts like earlier ones allocate nothing and copy to the host once for each pruning layer") {
  std::mt19937 random(6);
  const Pair models("mha_4_layers");
  const auto decoder = models.cuda->lazy({24, 2}, Pruner(lazyllm::KeepRatio(lazyllm::Schedule{{1, 0.6}, {2, 0.5}})));
  const std::vector<TokenId> a = random_tokens(random, 10, 97);
  const std::vector<TokenId> b = random_tokens(random, 14, 97);
  const auto generate = [&] {
    decoder->clear();
    const std::vector<Tokens> prompt = {a, b};
    decoder->step_all(prompt);
    for (std::size_t i = 0; i < 3; ++i) {
      const std::vector<Tokens> next = {Tokens(a).subspan(i, 1), Tokens(b).subspan(i, 1)};
      decoder->step_all(next);
    }
  };
  generate();
  const emulation::Counters before = emulation::counters();
  generate();
  CHECK(emulation::counters().allocations == before.allocations);
  CHECK(emulation::counters().copies_to_host == before.copies_to_host + 4 * (2 + 1));  // and the logits
  CHECK(emulation::counters().waits == before.waits + 4 * (2 + 1));
}

TEST_CASE("CUDA host: without memory a step leaves a sequence that can go on") {
  std::mt19937 random(7);
  const Pair models("mha_4_layers");
  const Pruner pruner(lazyllm::KeepRatio(lazyllm::Schedule{{1, 0.5}, {3, 0.5}}));
  const std::vector<TokenId> text = random_tokens(random, 12, 97);
  const auto untroubled = models.cuda->lazy(24, pruner);
  const std::vector<float> expected = copied(untroubled->step(text));
  int failures = 0;
  for (bool failed = true; failed;) {
    const auto decoder = models.cuda->lazy(24, pruner);
    emulation::fail_allocation_after(failures);
    failed = false;
    try {
      decoder->step(text);
    } catch (const lazyllm::cuda_error& error) {
      failed = true;
      ++failures;
      CHECK(std::string(error.what()).find("bytes: out of memory") != std::string::npos);
    }
    emulation::fail_allocation_after(-1);
    if (failed) {
      CHECK(decoder->length() == 0);
      CHECK(copied(decoder->step(text)) == expected);
    }
  }
  CHECK(failures > 5);
}

TEST_CASE("CUDA host: without memory for weights or K/V the message says how much is needed") {
  const Checkpoint checkpoint = small_checkpoint("mha_4_layers");
  emulation::fail_allocation_after(5);
  CHECK_THROWS_WITH_AS(open_cuda_model_f32(checkpoint.config(), weights_of(checkpoint)),
                       doctest::Contains("the model's weights need 1 MiB on the device: cudaMallocAsync of "),
                       lazyllm::cuda_error);
  emulation::fail_allocation_after(-1);
  const auto model = open_cuda_model_f32(checkpoint.config(), weights_of(checkpoint));
  emulation::fail_allocation_after(1);
  CHECK_THROWS_WITH_AS(model->dense({1024, 2}), doctest::Contains("K/V of 2 x 1024 tokens need 2 MiB on the device"),
                       lazyllm::cuda_error);
  emulation::fail_allocation_after(-1);
}

}  // namespace llama::test
