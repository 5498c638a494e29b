#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "examples/llama/library.hpp"
#include "examples/llama/report/report.hpp"
#include "examples/llama/token_ids.hpp"

namespace llama {

/// One generation, dense or lazy.
struct Run {
  Index prompt_tokens = 0;
  std::vector<TokenId> tokens;
  std::string text;
  std::vector<double> step_ms;  ///< the first is the time to the first token
  std::vector<lazyllm::LayerStats> prefill_layers;
  double prefill_operations = 0;
  double prompt_computed_percent = 100;
  Index revived = 0;
  Index aux_bytes_peak = 0;
  Index kv_bytes = 0;
  std::vector<float> logits;                                       ///< if they are asked for
  nlohmann::ordered_json trace = nlohmann::ordered_json::array();  ///< if it is asked for
  std::vector<ActiveLayers> active_layers;                         ///< of each step, if they are asked for

  /// Time to generate the first `count` tokens.
  double ms(std::size_t count) const;

  double decode_ms_per_token() const;
};

/// The figures of a run, for `--json`.
nlohmann::ordered_json to_json(const Run& run);

/// A run's times and memory in one line, `name` first.
std::string figures_of(std::string_view name, const Run& run);

}  // namespace llama
