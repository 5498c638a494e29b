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

TEST_CASE("CUDA host: memory that a sequence gives back stays in the device's pool") {
  const Pair models("mha_4_layers");
  CHECK(emulation::pool_kept_bytes() == std::numeric_limits<std::uint64_t>::max());
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
  CHECK(emulation::counters().waits == before.waits + 4);
  CHECK(emulation::counters().event_waits == before.event_waits + 4 * 2);
}

/// Launches of kernels and graphs, and allocations, of each step with graphs.
std::vector<emulation::Counters> steps_with_graphs(const std::vector<Pruner>& pruners) {
  const Pair models("mha_4_layers");
  std::vector<emulation::Counters> steps{emulation::counters()};
  check_graphs(*models.cuda, pruners, 0, [&] { steps.push_back(emulation::counters()); });
  return steps;
}

TEST_CASE("CUDA host: a replayed step launches a graph for each segment and its blocks launch no kernels") {
  const std::vector<Pruner> dense(2, Pruner(lazyllm::KeepAll()));
  const auto steps = steps_with_graphs(dense);
  const auto launches = [](const auto& all, std::size_t i) { return all[i + 1].launches - all[i].launches; };
  const auto graphs = [](const auto& all, std::size_t i) { return all[i + 1].graph_launches - all[i].graph_launches; };
  // The steps of the decoder without graphs are among them. Step 1 of one token runs as it is, step 2 is captured.
  CHECK(graphs(steps, 0) == 0);
  CHECK(graphs(steps, 1) == 0);
  CHECK(graphs(steps, 2) == 1);
  for (std::size_t i = 3; i + 1 < graph_steps; ++i) {
    CAPTURE(i);
    CHECK(graphs(steps, i) == 1);
    CHECK(launches(steps, i) * 5 < launches(steps, 1) * 3);
    CHECK(steps[i + 1].allocations == steps[i].allocations);
  }
  CHECK(graphs(steps, 2 * graph_steps - 1) == 1);  // three tokens: all layers but the last
  const lazyllm::Schedule schedule{{1, 0.6}, {3, 0.5}};
  const std::vector<Pruner> computed(
      2, Pruner(lazyllm::AnyPolicy(lazyllm::KeepComputed<lazyllm::KeepRatio>{lazyllm::KeepRatio(schedule), 0})));
  CHECK(graphs(steps_with_graphs(computed), graph_steps - 2) == 3);
}

TEST_CASE("CUDA host: a step with graphs in which a call fails leaves sequences that can go on") {
  const Pair models("mha_4_layers");
  const Pruner pruner(lazyllm::AnyPolicy(
      lazyllm::KeepComputed<lazyllm::KeepRatio>{lazyllm::KeepRatio(lazyllm::Schedule{{1, 0.5}}), 0}));
  const std::vector<TokenId> text = {5, 1, 9, 20, 7, 3, 11, 8, 2, 13, 6, 4};
  const auto run = [&](AnyDecoder& decoder, std::size_t from) {
    std::vector<float> logits;
    for (std::size_t i = from; i < text.size(); ++i) {
      const bool prompt = i < 5;
      logits = copied(decoder.step(prompt ? Tokens(text).first(5) : Tokens(text).subspan(i, 1)));
      if (prompt) i = 4;
    }
    return logits;
  };
  const auto untroubled = models.cuda->lazy(24, pruner);
  const std::vector<float> expected = run(*untroubled, 0);
  int failures = 0;
  int last_call = 1;
  for (int call = 0; call < last_call; call += 41) {
    CAPTURE(call);
    const auto decoder = models.cuda->lazy(24, pruner);
    decoder->use_graphs();
    const int before = emulation::counters().calls;
    emulation::fail_call_after(call);
    try {
      const std::vector<float> logits = run(*decoder, 0);
      CHECK(logits == expected);
    } catch (const lazyllm::cuda_error&) {
      ++failures;
      emulation::fail_call_after(-1);
      CHECK(run(*decoder, static_cast<std::size_t>(decoder->length())) == expected);
      if (call == 0) last_call = emulation::counters().calls - before;
    }
    emulation::fail_call_after(-1);
  }
  CHECK(failures > 5);
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
  const Checkpoint checkpoint = small_model("mha_4_layers");
  emulation::fail_allocation_after(5);
  CHECK_THROWS_WITH_AS(open_cuda_model_f32(checkpoint.config(), weights_of(checkpoint)),
                       doctest::Contains("the model's weights need 1 MiB on the device: cudaMallocAsync of "),
                       lazyllm::cuda_error);
  emulation::fail_allocation_after(-1);
  const auto model = open_cuda_model_f32(checkpoint.config(), weights_of(checkpoint));
  emulation::fail_allocation_after(0);
  CHECK_THROWS_WITH_AS(model->dense({1024, 2}), doctest::Contains("K/V of 2 x 1024 tokens need 2 MiB on the device"),
                       lazyllm::cuda_error);
  emulation::fail_allocation_after(-1);
}

}  // namespace llama::test
