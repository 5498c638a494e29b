#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "examples/llama/library.hpp"
#include "examples/llama/report/report.hpp"
#include "examples/llama/token_ids.hpp"

namespace llama {

/// Times between tokens in ms, of a generation's decode steps. Absent where there were no such tokens.
struct DecodeTimes {
  std::optional<double> second;        ///< until the second token
  std::optional<double> third_to_9th;  ///< mean
  std::optional<double> later;         ///< mean
  std::optional<double> p50, p99;      ///< of all: the least time that as many of them do not exceed
};

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
  DecodeTimes decode_times() const;
};

/// As `--json` has them: null where absent.
nlohmann::ordered_json to_json(const DecodeTimes& times);

/// The figures of a run, for `--json`.
nlohmann::ordered_json to_json(const Run& run);

/// A run's times and memory in one line, `name` first.
std::string figures_of(std::string_view name, const Run& run);

/// A run's times between tokens in one line, `name` first.
std::string decode_line(std::string_view name, const Run& run);

}  // namespace llama
