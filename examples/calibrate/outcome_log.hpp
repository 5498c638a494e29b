#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "examples/calibrate/search.hpp"
#include "examples/llama/program/resumable_log.hpp"

namespace llama {

/// Outcomes of finished runs on disk, see `ResumableLog`.
class OutcomeLog {
 public:
  /// Throws as `ResumableLog`.
  OutcomeLog(std::filesystem::path path, bool resume) : log_(std::move(path), resume) {}

  /// Of a search over `prompts` prompts for a model of `layers` layers. Throws as `ResumableLog::start`, and
  /// `file_error` for an outcome that no such search can have.
  void start(const nlohmann::ordered_json& settings, Index prompts, Index layers);

  /// The fingerprint of the dense answers that all outcomes compare with; before the first `add`. Throws `file_error`,
  /// with the file as it was but for a torn last line, if those of earlier runs compare with others.
  void compare_with(std::uint64_t answers);

  /// The outcome of an earlier run, or null.
  const Outcome* find(const lazyllm::Preset& preset, Index prompt) const;

  /// Keeps one more. Throws `file_error` if it cannot be written.
  void add(const lazyllm::Preset& preset, Index prompt, const Outcome& outcome);

 private:
  std::map<std::pair<std::string, Index>, Outcome> outcomes_;
  std::optional<std::uint64_t> answers_;  // those that the file names
  ResumableLog log_;
};

}  // namespace llama
