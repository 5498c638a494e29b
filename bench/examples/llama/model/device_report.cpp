#include "bench/examples/llama/model/device_report.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <string_view>

#include "examples/llama/library.hpp"
#include "examples/llama/program/timing.hpp"

namespace llama {
namespace {

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

/// Of each turn the value of `run` over that of `other`.
std::vector<double> ratios(const std::vector<double>& run, const std::vector<double>& other) {
  std::vector<double> values;
  std::ranges::transform(run, other, std::back_inserter(values), std::divides());
  return values;
}

/// Of each decode step the median over the repeats.
std::vector<double> steps_of(const DeviceRun& run) {
  std::vector<double> steps;
  for (std::size_t step = 0; step < run.decode_ms.front().size(); ++step) {
    std::vector<double> times;
    for (const std::vector<double>& repeat : run.decode_ms) times.push_back(repeat[step]);
    steps.push_back(median(std::move(times)));
  }
  return steps;
}

}  // namespace

nlohmann::ordered_json report(const DeviceCase& what, const DeviceTimes& times, Index weight_bytes) {
  const DeviceRun& dense_run = times.lazy.dense;
  // The dense prefills beside those with everything kept: no decode steps are between them.
  const std::vector<double>& dense = times.keep_one.dense.prefill_ms;
  const std::vector<double>& keep_one = times.keep_one.library.prefill_ms;
  const std::vector<double>& lazy = times.lazy.library.prefill_ms;
  const std::vector<double> overheads = ratios(keep_one, dense);
  const double floor_ms = times.floor.gemm_ms + times.floor.attention_ms;
  nlohmann::ordered_json report{{"prompt_tokens", what.prompt},
                                {"batch", what.batch},
                                {"repeats", what.repeats},
                                {"prefills", dense.size()},
                                {"dense_ms", median(dense)},
                                {"keep_one_ms", median(keep_one)},
                                {"lazy_ms", median(lazy)},
                                {"speedup", median(ratios(dense_run.prefill_ms, lazy))},
                                {"ideal_speedup", dense_run.operations / times.lazy.library.operations},
                                {"overhead_percent", 100 * (median(overheads) - 1)},
                                {"overhead_noise_percent", 100 * noise_of_median(overheads)},
                                {"library_percent", 100 * times.library_share},
                                {"dense_tflops", dense_run.operations / median(dense) * 1e-9},
                                {"gemm_tflops", times.floor.gemm_rate * 1e-12},
                                {"copy_gbytes_per_second", times.floor.copy_rate * 1e-9},
                                {"gemm_ms", times.floor.gemm_ms},
                                {"attention_ms", times.floor.attention_ms},
                                {"dense_of_floor", median(dense) / floor_ms},
                                {"generated_tokens", what.generate}};
  if (what.generate < 2) return report;

  const std::vector<double> dense_steps = steps_of(dense_run);
  const std::vector<double> lazy_steps = steps_of(times.lazy.library);
  double slowest = 0;
  for (std::size_t i = 0; i < dense_steps.size(); ++i) slowest = std::max(slowest, lazy_steps[i] / dense_steps[i]);
  const double key_value_bytes = static_cast<double>(dense_run.kv_bytes) * static_cast<double>(what.prompt) /
                                 static_cast<double>(what.prompt + what.generate);
  report.update(
      {{"dense_decode_ms", median(dense_steps)},
       {"lazy_decode_ms", median(lazy_steps)},
       {"graph_decode_ms", times.graphs.decode_ms.empty() ? nlohmann::ordered_json()
                                                          : nlohmann::ordered_json(median(steps_of(times.graphs)))},
       {"decode_ratio", sum(lazy_steps) / sum(dense_steps)},
       {"slowest_decode_ratio", slowest},
       {"decode_floor_ms", (static_cast<double>(weight_bytes) + key_value_bytes) / times.floor.copy_rate * 1e3},
       {"revived_per_step", times.revived_per_step}});
  return report;
}

nlohmann::ordered_json measure_cases(nlohmann::ordered_json cases, const std::function<bool()>& time_left,
                                     const std::function<nlohmann::ordered_json(std::size_t)>& measure,
                                     const SaveCases& save) {
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
