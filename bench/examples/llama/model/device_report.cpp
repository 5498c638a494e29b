#include "bench/examples/llama/model/device_report.hpp"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "examples/llama/library.hpp"

namespace llama {
namespace {

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

/// The median of `value(i)` over the repeats.
template <class Value>
double median(const DeviceRun& run, const Value& value) {
  std::vector<double> values;
  for (std::size_t i = 0; i < run.prefill_ms.size(); ++i) values.push_back(value(i));
  return median(std::move(values));
}

/// Of each decode step the median over the repeats.
std::vector<double> steps_of(const DeviceRun& run) {
  std::vector<double> steps;
  for (std::size_t step = 0; step < run.decode_ms.front().size(); ++step) {
    steps.push_back(median(run, [&](std::size_t i) { return run.decode_ms[i][step]; }));
  }
  return steps;
}

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

}  // namespace

nlohmann::ordered_json report(const DeviceCase& what, const DeviceTimes& times, Index weight_bytes) {
  const std::vector<double>& dense = times.dense.prefill_ms;
  const std::vector<double>& keep_one = times.keep_one.prefill_ms;
  const std::vector<double>& lazy = times.lazy.prefill_ms;
  const double floor_ms = times.floor.gemm_ms + times.floor.attention_ms;
  nlohmann::ordered_json report{
      {"prompt_tokens", what.prompt},
      {"batch", what.batch},
      {"repeats", what.repeats},
      {"dense_ms", median(dense)},
      {"keep_one_ms", median(keep_one)},
      {"lazy_ms", median(lazy)},
      {"speedup", median(times.dense, [&](std::size_t i) { return dense[i] / lazy[i]; })},
      {"ideal_speedup", times.dense.operations / times.lazy.operations},
      {"overhead_percent", median(times.dense, [&](std::size_t i) { return 100 * (keep_one[i] / dense[i] - 1); })},
      {"library_percent", 100 * times.library_share},
      {"dense_tflops", times.dense.operations / median(dense) * 1e-9},
      {"gemm_tflops", times.floor.gemm_rate * 1e-12},
      {"copy_gbytes_per_second", times.floor.copy_rate * 1e-9},
      {"gemm_ms", times.floor.gemm_ms},
      {"attention_ms", times.floor.attention_ms},
      {"dense_of_floor", median(dense) / floor_ms},
      {"generated_tokens", what.generate}};
  if (what.generate < 2) return report;

  const std::vector<double> dense_steps = steps_of(times.dense);
  const std::vector<double> lazy_steps = steps_of(times.lazy);
  double slowest = 0;
  for (std::size_t i = 0; i < dense_steps.size(); ++i) slowest = std::max(slowest, lazy_steps[i] / dense_steps[i]);
  const double key_value_bytes = static_cast<double>(times.dense.kv_bytes) * static_cast<double>(what.prompt) /
                                 static_cast<double>(what.prompt + what.generate);
  report.update(
      {{"dense_decode_ms", median(dense_steps)},
       {"lazy_decode_ms", median(lazy_steps)},
       {"decode_ratio", sum(lazy_steps) / sum(dense_steps)},
       {"slowest_decode_ratio", slowest},
       {"decode_floor_ms", (static_cast<double>(weight_bytes) + key_value_bytes) / times.floor.copy_rate * 1e3},
       {"revived_per_step", times.revived_per_step}});
  return report;
}

nlohmann::ordered_json measure_cases(nlohmann::ordered_json cases, const std::function<bool()>& time_left,
                                     const std::function<nlohmann::ordered_json(std::size_t)>& measure,
                                     const std::function<void(const nlohmann::ordered_json&)>& save) {
  for (auto& entry : cases) entry["left_out"] = "no time was left";
  save(cases);
  for (std::size_t i = 0; i < cases.size() && time_left(); ++i) {
    try {
      const nlohmann::ordered_json figures = measure(i);
      cases[i].erase("left_out");
      cases[i].update(figures);
    } catch (const lazyllm::cuda_error& error) {
      if (std::string_view(error.what()).find("out of memory") == std::string_view::npos) throw;
      cases[i]["left_out"] = error.what();
    }
    save(cases);
  }
  return cases;
}

}  // namespace llama
