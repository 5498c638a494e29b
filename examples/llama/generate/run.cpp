#include "examples/llama/generate/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "examples/llama/program/counted.hpp"
#include "examples/llama/program/timing.hpp"

namespace llama {

double Run::ms(std::size_t count) const {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += step_ms[i];
  return sum;
}

double Run::decode_ms_per_token() const {
  return step_ms.size() < 2 ? 0 : (ms(step_ms.size()) - step_ms[0]) / static_cast<double>(step_ms.size() - 1);
}

DecodeTimes Run::decode_times() const {
  DecodeTimes times;
  if (step_ms.size() < 2) return times;
  const std::span<const double> decode = std::span(step_ms).subspan(1);
  const auto mean = [&](std::size_t first, std::size_t end) -> std::optional<double> {
    end = std::min(end, decode.size());
    if (first >= end) return std::nullopt;
    return std::accumulate(decode.begin() + static_cast<std::ptrdiff_t>(first),
                           decode.begin() + static_cast<std::ptrdiff_t>(end), 0.0) /
           static_cast<double>(end - first);
  };
  times.second = decode[0];
  times.third_to_9th = mean(1, 8);
  times.later = mean(8, decode.size());
  times.p50 = percentile({decode.begin(), decode.end()}, 50);
  times.p99 = percentile({decode.begin(), decode.end()}, 99);
  return times;
}

nlohmann::ordered_json to_json(const DecodeTimes& times) {
  nlohmann::ordered_json json;
  const auto add = [&](const char* name, const std::optional<double>& value) {
    json[name] = value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  add("second", times.second);
  add("third_to_9th", times.third_to_9th);
  add("later", times.later);
  add("p50", times.p50);
  add("p99", times.p99);
  return json;
}

nlohmann::ordered_json to_json(const Run& run) {
  auto layers = nlohmann::ordered_json::array();
  for (const lazyllm::LayerStats& layer : run.prefill_layers) {
    layers.push_back({{"active", layer.active}, {"computed", layer.computed}, {"kept", layer.kept}});
  }
  return {{"tokens", run.tokens},
          {"text", run.text},
          {"ttft_ms", run.step_ms[0]},
          {"decode_ms_per_token", run.decode_ms_per_token()},
          {"decode_ms", to_json(run.decode_times())},
          {"step_ms", run.step_ms},
          {"prompt_computed_percent", run.prompt_computed_percent},
          {"revived_tokens", run.revived},
          {"aux_bytes_peak", run.aux_bytes_peak},
          {"kv_bytes", run.kv_bytes},
          {"layers", layers}};
}

std::string figures_of(std::string_view name, const Run& run) {
  constexpr double mebibyte = 1 << 20;
  return fmt::format(
      "{}prompt {}, TTFT {:.1f} ms, then {:.2f} ms/token; KV {:.1f} MiB, Aux Cache {:.1f} MiB at most, {} revived",
      name, counted(run.prompt_tokens, "token"), run.step_ms[0], run.decode_ms_per_token(),
      static_cast<double>(run.kv_bytes) / mebibyte, static_cast<double>(run.aux_bytes_peak) / mebibyte,
      counted(run.revived, "row"));
}

std::string decode_line(std::string_view name, const Run& run) {
  const DecodeTimes times = run.decode_times();
  const auto text = [](const std::optional<double>& ms) { return ms ? fmt::format("{:.1f}", *ms) : "-"; };
  return fmt::format("{}2nd token {} ms, 3rd to 9th {}, later {}; between tokens p50 {}, p99 {}", name,
                     text(times.second), text(times.third_to_9th), text(times.later), text(times.p50), text(times.p99));
}

}  // namespace llama
