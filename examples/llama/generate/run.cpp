#include "examples/llama/generate/run.hpp"

#include <fmt/format.h>

#include "examples/llama/program/counted.hpp"

namespace llama {

double Run::ms(std::size_t count) const {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += step_ms[i];
  return sum;
}

double Run::decode_ms_per_token() const {
  return step_ms.size() < 2 ? 0 : (ms(step_ms.size()) - step_ms[0]) / static_cast<double>(step_ms.size() - 1);
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

}  // namespace llama
