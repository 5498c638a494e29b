#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "lazyllm/core.hpp"

namespace lazyllm {

/// How an engine is checked.
struct CheckOptions {
  AnyPolicy policy = {};   ///< the one that prunes; if empty, half goes on after a third and two thirds of the layers
  Index decode_steps = 4;  ///< at least 2; the last tokens of the prompt, fed one by one
  Index last_queries = 4;  ///< window of the scores; 1 if the engine keeps no more queries
  Index sequences = 3;     ///< of a batch, at most 8; 1 for an engine without batches
  float tolerance = 0;     ///< of logits, as a share of the highest; 0: bit for bit
  float score_tolerance = 1e-3F;  ///< of scores, as a share of the highest
};

/// The result of one check.
struct CheckResult {
  std::string name;     ///< what must hold
  bool passed = false;  ///< whether it holds
  std::string detail;   ///< what was found, in words
};

/// The results of all checks.
struct CheckReport {
  std::vector<CheckResult> results;  ///< in the order in which the checks ran

  /// Whether all checks passed.
  bool passed() const { return std::ranges::all_of(results, &CheckResult::passed); }

  /// A line for each check.
  std::string text() const {
    std::string lines;
    for (const auto& [name, passed, detail] : results) {
      lines.append(passed ? "passed  " : "FAILED  ").append(name).append(": ").append(detail).append("\n");
    }
    return lines;
  }
};

}  // namespace lazyllm
