#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bench/examples/llama/model/device_report.hpp"

#include "examples/llama/library.hpp"

namespace llama {
namespace {

DeviceTimes made_up() {
  DeviceTimes times;
  const DeviceRun dense = {.prefill_ms = {100, 110, 120}, .decode_ms = {}, .operations = 6e12, .kv_bytes = 800};
  times.keep_one.dense = dense;
  times.keep_one.library = dense;
  times.keep_one.library.prefill_ms = {101, 109, 121};
  times.lazy.dense = dense;
  times.lazy.dense.prefill_ms = {102, 112, 122};
  times.lazy.dense.decode_ms = {{4, 8}, {5, 5}, {6, 2}};
  times.lazy.library = {
      .prefill_ms = {51, 44, 50}, .decode_ms = {{5, 4}, {10, 4}, {9, 5}}, .operations = 2e12, .kv_bytes = 800};
  times.graphs.decode_ms = {{4, 3}, {4, 3}, {9, 9}};
  times.library_share = 0.004;
  times.revived_per_step = 7;
  times.floor = {.gemm_rate = 700e12, .copy_rate = 2e12, .gemm_ms = 80, .attention_ms = 8};
  return times;
}

TEST_CASE("a device report has medians over the turns and ratios of the same turn") {
  const auto report = llama::report({.prompt = 6, .batch = 2, .generate = 2, .repeats = 3}, made_up(), 1000);
  CHECK(report["prompt_tokens"] == 6);
  CHECK(report["batch"] == 2);
  CHECK(report["dense_ms"] == 110);
  CHECK(report["keep_one_ms"] == 109);
  CHECK(report["lazy_ms"] == 50);
  CHECK(report["prefills"] == 3);
  CHECK(report["speedup"].get<double>() == doctest::Approx(122.0 / 50));  // of 2, 2.545 and 2.44: the same pair's
  CHECK(report["ideal_speedup"] == 3);                                    // not 110 / 50
  CHECK(report["overhead_percent"].get<double>() == doctest::Approx(100 * (121.0 / 120 - 1)));
  // Of 1.01, 0.990909 and 1.008333: a standard deviation of 0.01058.
  CHECK(report["overhead_noise_percent"].get<double>() == doctest::Approx(1.531).epsilon(1e-3));
  CHECK(report["library_percent"].get<double>() == doctest::Approx(0.4));
  CHECK(report["dense_of_floor"].get<double>() == doctest::Approx(110.0 / 88));
  CHECK(report["dense_tflops"].get<double>() == doctest::Approx(6 / 0.110));
  CHECK(report["gemm_tflops"].get<double>() == doctest::Approx(700));
  CHECK(report["copy_gbytes_per_second"].get<double>() == doctest::Approx(2000));
}

TEST_CASE("a device report compares decode steps at the same position") {
  const auto report = llama::report({.prompt = 6, .batch = 2, .generate = 2, .repeats = 3}, made_up(), 1000);
  // Medians of the steps: dense 5 and 5, lazy 9 and 4.
  CHECK(report["dense_decode_ms"] == 5);
  CHECK(report["lazy_decode_ms"] == 6.5);  // of the two steps
  CHECK(report["graph_decode_ms"] == 3.5);
  CHECK(report["decode_ratio"].get<double>() == doctest::Approx(1.3));
  CHECK(report["slowest_decode_ratio"].get<double>() == doctest::Approx(1.8));
  CHECK(report["decode_floor_ms"].get<double>() == doctest::Approx((1000 + 600) / 2e12 * 1e3));  // K/V of the prompt
  CHECK(report["revived_per_step"] == 7);
}

TEST_CASE("a device report has no time of graphs that failed") {
  DeviceTimes times = made_up();
  times.graphs = {};
  const auto report = llama::report({.prompt = 6, .batch = 2, .generate = 2, .repeats = 3}, times, 1000);
  CHECK(report.at("graph_decode_ms").is_null());
  CHECK(report["lazy_decode_ms"] == 6.5);
}

TEST_CASE("a device report without decode steps has no figures of them") {
  DeviceTimes times = made_up();
  for (DeviceRun* run : {&times.lazy.dense, &times.lazy.library}) run->decode_ms = {{}, {}, {}};
  const auto report = llama::report({.prompt = 6, .batch = 2, .generate = 1, .repeats = 3}, times, 1000);
  CHECK(report.contains("speedup"));
  CHECK_FALSE(report.contains("decode_ratio"));
}

using Json = nlohmann::ordered_json;

Json cases() { return Json::array({{{"prompt_tokens", 1}}, {{"prompt_tokens", 2}}, {{"prompt_tokens", 3}}}); }

std::vector<std::string> left_out(const Json& cases) {
  std::vector<std::string> reasons;
  for (const Json& entry : cases) reasons.push_back(entry.value("left_out", ""));
  return reasons;
}

TEST_CASE("cases of a device are saved before the first and after each, those that are not measured as left out") {
  const std::string no_time = "no time was left";
  int measured = 0;
  std::vector<Json> saved;
  const auto save = [&](const Json& all) { saved.push_back(all); };
  const auto measure = [&](std::size_t i) {
    if (i == 1) throw lazyllm::cuda_error("cudaMalloc: out of memory");
    ++measured;
    return Json{{"dense_ms", 10 * i}};
  };
  SUBCASE("with time for all, and no memory for one") {
    const Json all = measure_cases(
        cases(), [] { return true; }, measure, save);
    const std::string no_memory = "cudaMalloc: out of memory";
    REQUIRE(saved.size() == 4);
    CHECK(left_out(saved[0]) == std::vector{no_time, no_time, no_time});
    CHECK(left_out(saved[1]) == std::vector<std::string>{"", no_time, no_time});
    CHECK(left_out(saved[2]) == std::vector<std::string>{"", no_memory, no_time});
    CHECK(left_out(saved[3]) == std::vector<std::string>{"", no_memory, ""});
    CHECK(all == saved[3]);
    CHECK(all[2] == Json{{"prompt_tokens", 3}, {"dense_ms", 20}});
  }
  SUBCASE("with time for one") {
    const Json all = measure_cases(
        cases(), [&] { return measured == 0; }, measure, save);
    CHECK(left_out(all) == std::vector<std::string>{"", no_time, no_time});
  }
  SUBCASE("another error passes") {
    const auto fail = [](std::size_t) -> Json { throw lazyllm::cuda_error("an illegal memory access"); };
    CHECK_THROWS_AS(measure_cases(
                        cases(), [] { return true; }, fail, save),
                    lazyllm::cuda_error);
    CHECK(saved.size() == 1);
  }
}

}  // namespace
}  // namespace llama
