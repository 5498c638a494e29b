#include <doctest/doctest.h>

#include "bench/examples/llama/model/device_report.hpp"

namespace lazyllm::llama {
namespace {

DeviceTimes made_up() {
  DeviceTimes times;
  times.dense = {
      .prefill_ms = {100, 110, 120}, .decode_ms = {{4, 8}, {5, 5}, {6, 2}}, .operations = 6e12, .kv_bytes = 800};
  times.keep_one = {.prefill_ms = {101, 109, 121}, .decode_ms = {}, .operations = 6e12, .kv_bytes = 800};
  times.lazy = {
      .prefill_ms = {50, 44, 50}, .decode_ms = {{5, 4}, {10, 4}, {9, 5}}, .operations = 2e12, .kv_bytes = 800};
  times.library_share = 0.004;
  times.revived_per_step = 7;
  times.floor = {.gemm_rate = 700e12, .copy_rate = 2e12, .gemm_ms = 80, .attention_ms = 8};
  return times;
}

TEST_CASE("a device report has medians over the repeats and ratios of the same repeat") {
  const auto report = llama::report({.prompt = 6, .batch = 2, .generate = 2, .repeats = 3}, made_up(), 1000);
  CHECK(report["prompt_tokens"] == 6);
  CHECK(report["batch"] == 2);
  CHECK(report["dense_ms"] == 110);
  CHECK(report["keep_one_ms"] == 109);
  CHECK(report["lazy_ms"] == 50);
  CHECK(report["speedup"] == 2.4);      // of 2, 2.5 and 2.4
  CHECK(report["ideal_speedup"] == 3);  // not 110 / 50
  CHECK(report["overhead_percent"].get<double>() == doctest::Approx(100 * (121.0 / 120 - 1)));
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
  CHECK(report["lazy_decode_ms"] == 9);
  CHECK(report["decode_ratio"].get<double>() == doctest::Approx(1.3));
  CHECK(report["slowest_decode_ratio"].get<double>() == doctest::Approx(1.8));
  CHECK(report["decode_floor_ms"].get<double>() == doctest::Approx((1000 + 600) / 2e12 * 1e3));  // K/V of the prompt
  CHECK(report["revived_per_step"] == 7);
}

TEST_CASE("a device report without decode steps has no figures of them") {
  DeviceTimes times = made_up();
  for (DeviceRun* run : {&times.dense, &times.lazy}) run->decode_ms = {{}, {}, {}};
  const auto report = llama::report({.prompt = 6, .batch = 2, .generate = 1, .repeats = 3}, times, 1000);
  CHECK(report.contains("speedup"));
  CHECK_FALSE(report.contains("decode_ratio"));
}

}  // namespace
}  // namespace lazyllm::llama
