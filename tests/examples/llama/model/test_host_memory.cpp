#include "examples/llama/model/host_memory.hpp"

#include <doctest/doctest.h>

#include <new>
#include <sstream>
#include <string>

#include "examples/llama/model/any_model.hpp"
#include "examples/llama/model/cpu.hpp"

namespace llama {
namespace {

constexpr double gibibyte = 1 << 30;

/// One layer of 12 Mi weights, and a classifier of 4 Mi.
ModelConfig config() {
  ModelConfig config;
  config.vocab = 4096;
  config.hidden_size = 1024;
  config.layers = 1;
  config.heads = config.kv_heads = 16;
  config.head_dim = 64;
  config.intermediate_size = 8192 / 3;
  return config;
}

double weights() { return 4.0 * 1024 * 1024 + 3.0 * 1024 * (8192 / 3) + 4096.0 * 1024; }

std::string message(const Placement& placement, std::optional<double> available) {
  try {
    check_weights_fit(config(), placement, available);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return {};
}

TEST_CASE("weights that do not fit are refused, with what needs less") {
  const Placement f32{.dtype = "f32"}, bf16{.dtype = "bf16"}, int8{.dtype = "f32", .int8 = true};
  CHECK(host_weight_bytes(config(), f32) == 4 * weights());
  CHECK(host_weight_bytes(config(), bf16) == 2 * weights());
  CHECK(host_weight_bytes(config(), int8) == weights());
  for (const Placement& placement : {f32, bf16, int8}) {
    const double needed = host_weight_bytes(config(), placement);
    CHECK(message(placement, needed).empty());
    CHECK(message(placement, std::nullopt).empty());
    CHECK_FALSE(message(placement, needed - 1).empty());
  }
  ModelConfig large = config();
  large.layers = 1000;
  CHECK_THROWS_WITH(check_weights_fit(large, f32, 3.25 * gibibyte),
                    "not enough memory: the weights in f32 need 46.9 GiB, 3.2 GiB are free; --dtype bf16 or --weights "
                    "int8 need less");
  CHECK(message(bf16, 0).ends_with("; --weights int8 needs less"));
  CHECK(message(int8, 0).ends_with(" are free"));
}

TEST_CASE("what is free is MemAvailable") {
  std::istringstream usual("MemTotal:       16318284 kB\nMemFree:         1000 kB\nMemAvailable:       2048 kB\n");
  CHECK(available_bytes(usual) == 2048.0 * 1024);
  std::istringstream old("MemTotal:       16318284 kB\nMemFree:         1000 kB\n"), empty;
  CHECK_FALSE(available_bytes(old).has_value());
  CHECK_FALSE(available_bytes(empty).has_value());
}

TEST_CASE("a model larger than any memory is refused before a weight is read") {
  ModelConfig huge = config();
  huge.layers = ModelLimits::layers;
  huge.hidden_size = ModelLimits::hidden_size;
  huge.intermediate_size = ModelLimits::intermediate_size;
  bool read = false;
  const WeightSource source = [&](const std::string&, const std::vector<Index>&) -> Tensor {
    read = true;
    throw std::runtime_error("read");
  };
  CHECK_THROWS_WITH(open_model(huge, source, {}), doctest::Contains("not enough memory: the weights in f32 need "));
  CHECK_FALSE(read);
}

TEST_CASE("where memory ends, the error names the weights or the K/V") {
  const WeightSource source = [](const std::string&, const std::vector<Index>&) -> Tensor { throw std::bad_alloc(); };
  for (const auto& [placement, message] :
       {std::pair(Placement{.dtype = "f32"}, "the weights in f32 need 64.0 MiB"),
        {Placement{.dtype = "bf16"}, "the weights in bf16 need 32.0 MiB"},
        {Placement{.dtype = "bf16", .int8 = true}, "the weights in int8 need 16.0 MiB"}}) {
    CHECK_THROWS_WITH(open_model(config(), source, placement), doctest::Contains(message));
  }
  lazyllm::cpu::Context context(1);
  const auto keys_and_values = [&](const KvCacheSize& size) { KvCaches<float, CpuDevice>(context, config(), size); };
  // More than any memory: under the address sanitizer a request for less ends the program.
  CHECK_THROWS_WITH(keys_and_values({Index{1} << 49, 2}),
                    "not enough memory: K/V of 2 x 562949953421312 tokens need 8589934592.0 GiB");
}

}  // namespace
}  // namespace llama
