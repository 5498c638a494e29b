#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "examples/llama/calibrate/search.hpp"

namespace lazyllm::llama {

/// Outcomes on disk, so that an interrupted search goes on where it stopped: a file of JSON lines, first the settings
/// on which outcomes depend, then one line for each outcome as soon as it is there.
class OutcomeLog {
 public:
  /// Starts the file anew, or, if `resume` and it is there, reads it and goes on; a last line that was cut off is
  /// dropped. Throws `lazyllm::invalid_argument` or `checkpoint_error`, and leaves the file as it was, if it cannot be
  /// read or written, is damaged or was made with other settings.
  OutcomeLog(std::filesystem::path path, const nlohmann::json& settings, bool resume);

  /// The outcome of an earlier run, or null.
  const Outcome* find(const Preset& preset, Index prompt) const;

  /// Throws `lazyllm::invalid_argument` if it cannot be written.
  void add(const Preset& preset, Index prompt, const Outcome& outcome);

 private:
  void read(const std::string& text, const nlohmann::json& settings);
  void write(const nlohmann::json& line);

  std::filesystem::path path_;
  std::map<std::pair<std::string, Index>, Outcome> outcomes_;
  std::ofstream stream_;
};

}  // namespace lazyllm::llama
