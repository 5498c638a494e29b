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

/// With what the figures of a preset were taken. With other prompts or another type they differ.
struct Conditions {
  Index prompt_tokens = 0;  ///< of the longest prompt
  bool chat = false;        ///< prompts in the model's chat template
  std::string dtype;        ///< as `--dtype`
  bool int8 = false;        ///< weights in int8
  std::string follow_up;    ///< the second prompt whose answers were compared; empty if there was none
};

/// What `--schedule @FILE` reads. `presets` must not be empty; the first one is the default.
nlohmann::ordered_json preset_file(const std::string& model, Index layers, const std::vector<NamedPreset>& presets,
                                   const Conditions& conditions);

}  // namespace llama
