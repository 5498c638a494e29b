#include "support/llama_cuda_emulation.hpp"
// The device's code, compiled for the emulation.
#include "bench/examples/llama/model/device_ttft.cu"
//
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "bench/examples/llama/model/random_weights.hpp"
#include "examples/llama/model/operations.hpp"

namespace llama {

/// Of the library that is not there.
DeviceFloor device_floor(const ModelConfig&, Index prompt, Index batch, cudaStream_t) {
  return {.gemm_rate = 1,
          .copy_rate = 2,
          .gemm_ms = static_cast<double>(prompt),
          .attention_ms = static_cast<double>(batch)};
}

namespace {

ModelConfig small_model() {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab = 50;
  config.context = 64;
  config.norm_epsilon = 1e-5;
  config.hidden_size = 32;
  config.layers = 3;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 8;
  config.intermediate_size = 48;
  return config;
}

lazyllm::Preset half_after_one() {
  lazyllm::Preset preset;
  preset.schedule = lazyllm::Schedule{{1, 0.5}};
  return preset;
}

TEST_CASE("the device's benchmark runs dense, keep 1 and lazy as often as asked, and counts their operations") {
  const ModelConfig config = small_model();
  DeviceBench bench(config, random_weights<Eigen::bfloat16>(config));
  CHECK(device_name() == "emulated");
  CHECK(bench.weight_bytes() == 2 * (50 * 32 + 3 * (32 * 32 + 32 * 32 + 32 * 32 + 3 * 32 * 48)));

  const DeviceCase what{.prompt = 12, .batch = 2, .generate = 4, .repeats = 2};
  const DeviceTimes times =
      bench.measure(what, lazyllm::TokenPruner<lazyllm::AnyPolicy>(lazyllm::KeepRatio(half_after_one().schedule)));
  const std::size_t turns = times.keep_one.dense.prefill_ms.size();
  const double prefill_ms = times.keep_one.dense.prefill_ms.front();
  CHECK(turns == std::ceil(1000 / times.keep_one.library.prefill_ms.front()));
  CHECK(turns > 2);
  CHECK(times.keep_one.library.prefill_ms.size() == turns);
  CHECK(times.lazy.dense.prefill_ms.size() == times.lazy.library.prefill_ms.size());
  CHECK(times.lazy.dense.prefill_ms == std::vector<double>(times.lazy.dense.prefill_ms.size(), prefill_ms));
  REQUIRE(times.lazy.dense.decode_ms.size() == 2);
  CHECK(times.lazy.dense.decode_ms[0].size() == 3);
  CHECK(times.lazy.library.decode_ms.size() == 2);
  CHECK(times.lazy.library.decode_ms[1].size() == 3);
  REQUIRE(times.graphs.decode_ms.size() == 2);
  CHECK(times.graphs.decode_ms[1].size() == 3);
  for (const DeviceRun* run : {&times.keep_one.dense, &times.keep_one.library}) CHECK(run->decode_ms.empty());
  CHECK(times.keep_one.dense.operations == 2 * prefill_operations(config, 12));
  CHECK(times.keep_one.library.operations == times.keep_one.dense.operations);
  CHECK(times.lazy.dense.operations == times.keep_one.dense.operations);
  CHECK(times.lazy.library.operations == 2 * prefill_operations(config, 12, half_after_one()));
  // K and V, layers, sequences, tokens, heads, width, bytes
  CHECK(times.lazy.dense.kv_bytes == 2 * 3 * 2 * 16 * 2 * 8 * 2);
  CHECK(times.revived_per_step > 0);
  CHECK(times.floor.gemm_ms == 12);
  CHECK(times.floor.attention_ms == 2);
}

TEST_CASE("the library's share counts its work and not the gaps between blocks") {
  const ModelConfig config = small_model();
  DeviceBench bench(config, random_weights<Eigen::bfloat16>(config));
  const DeviceCase what{.prompt = 12, .batch = 1, .generate = 1, .repeats = 1};
  const auto share = [&](const lazyllm::TokenPruner<lazyllm::AnyPolicy>& pruner) {
    return bench.measure(what, pruner).library_share;
  };
  // One copy of rows after the last layer, an upload and a launch of 5 ms each; how many the host has is not known.
  const double keep_all = share(lazyllm::TokenPruner<lazyllm::AnyPolicy>(lazyllm::KeepAll()));
  const double whole = 2 * 5 / keep_all;
  CHECK(std::fmod(std::round(whole), 5) == 1);  // and the gap between the two marks
  CHECK(whole == doctest::Approx(std::round(whole)));
  const double pruned = share(lazyllm::TokenPruner<lazyllm::AnyPolicy>(lazyllm::KeepRatio(half_after_one().schedule)));
  CHECK(pruned > 2 * keep_all);
  CHECK(pruned < 0.5);
}

TEST_CASE("graphs that fail cost the device's benchmark no other figures, and are not tried again") {
  namespace emulation = lazyllm::test::cuda_emulation;
  const ModelConfig config = small_model();
  DeviceBench bench(config, random_weights<Eigen::bfloat16>(config));
  const int before = emulation::counters().graph_launches;
  bool failed = false;
  // The call behind the first graph fails.
  const lazyllm::TokenPruner<lazyllm::AnyPolicy> pruner([&](const lazyllm::PrunePoint& point) {
    if (!failed && emulation::counters().graph_launches > before) {
      failed = true;
      emulation::fail_call_after(0);
    }
    return lazyllm::KeepRatio(half_after_one().schedule)(point);
  });
  for (int i = 0; i < 2; ++i) {
    const DeviceTimes times = bench.measure({.prompt = 12, .batch = 1, .generate = 3, .repeats = 2}, pruner);
    CHECK(failed);
    CHECK(times.graphs.decode_ms.empty());
    CHECK(times.lazy.library.decode_ms.size() == 2);
    CHECK(times.library_share > 0);
    CHECK(emulation::counters().graph_launches == before + 1);
  }
}

TEST_CASE("a case of the device's benchmark without memory throws, and the next one runs") {
  const ModelConfig config = small_model();
  DeviceBench bench(config, random_weights<Eigen::bfloat16>(config));
  const lazyllm::TokenPruner<lazyllm::AnyPolicy> pruner(lazyllm::KeepRatio(half_after_one().schedule));
  lazyllm::test::cuda_emulation::fail_allocation_after(3);
  CHECK_THROWS_AS(bench.measure({.prompt = 12, .batch = 1, .generate = 1, .repeats = 1}, pruner), lazyllm::cuda_error);
  lazyllm::test::cuda_emulation::fail_allocation_after(-1);
  CHECK(bench.measure({.prompt = 8, .batch = 1, .generate = 1, .repeats = 1}, pruner).lazy.library.prefill_ms.size() >
        1);
}

}  // namespace
}  // namespace llama
