#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "examples/llama/base.hpp"

namespace llama {

/// One run of one item with the method.
struct RunResult {
  std::string prediction;
  double score = 0;  ///< in [0, 1]
  Index tokens = 0;  ///< generated, a stop token included
  double ttft_ms = 0;
  double total_ms = 0;
  double operations = 0;        ///< floating-point operations until the first token
  double computed_percent = 0;  ///< of the prompt's (token, layer) pairs
  double reserved_percent = 0;  ///< peak K/V of all tokens plus parked rows, against K/V of the dense run
  double filled_percent = 0;    ///< the same counting only K/V that were computed
};

/// Dense and the method in turn: entry i of each list comes from turn i. Empty lists: not timed.
struct Timing {
  std::vector<double> dense_ttft_ms;
  std::vector<double> ttft_ms;
  std::vector<double> dense_total_ms;  ///< of as many tokens as both have generated
  std::vector<double> total_ms;
};

/// All that is known of one finished item.
struct ItemResult {
  std::string id;
  std::string dataset;
  std::uint64_t fingerprint = 0;  ///< the item's
  Index prompt_tokens = 0;
  double dense_operations = 0;  ///< floating-point operations of a dense run until the first token
  std::vector<RunResult> runs;  ///< at least one
  Timing timing;
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RunResult, prediction, score, tokens, ttft_ms, total_ms, operations,
                                   computed_percent, reserved_percent, filled_percent)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Timing, dense_ttft_ms, ttft_ms, dense_total_ms, total_ms)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ItemResult, id, dataset, fingerprint, prompt_tokens, dense_operations, runs, timing)

}  // namespace llama
