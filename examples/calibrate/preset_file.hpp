#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "examples/calibrate/search.hpp"

namespace llama {

/// A preset of a preset file.
struct NamedPreset {
  std::string name;
  Candidate candidate;
  Agreement held_out;       ///< over prompts that the search has not seen
  double ttft_speedup = 1;  ///< by the clock
};

/// What `--schedule @FILE` reads. `presets` must not be empty; the first one is the default. `follow_up` is the second
/// prompt whose answers were compared, if there was one.
nlohmann::ordered_json preset_file(const std::string& model, Index layers, const std::vector<NamedPreset>& presets,
                                   const std::string& follow_up = {});

}  // namespace llama
