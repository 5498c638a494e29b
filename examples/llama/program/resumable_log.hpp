#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace llama {

/// Finished work on disk, so that an interrupted program goes on where it stopped: a file of JSON lines, first the
/// settings on which the rest depends, then one line for each piece of work as soon as it is done.
class ResumableLog {
 public:
  /// What reads an earlier line; `place` is its FILE:LINE. May throw.
  using OnLine = std::function<void(const nlohmann::json& line, const std::string& place)>;

  /// Starts the file anew, or, if `resume` and it is there, reads it and opens it to go on. A last line that was cut
  /// off is dropped. Throws `std::invalid_argument` or `checkpoint_error`, with the file as it was, if it cannot be
  /// read or written, is something else or damaged, or was started with other settings, which the message names.
  ResumableLog(std::filesystem::path path, const nlohmann::ordered_json& settings, bool resume, const OnLine& on_line);

  /// Throws `std::invalid_argument` if the line cannot be written.
  void append(const nlohmann::ordered_json& line);

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::ofstream stream_;
};

}  // namespace llama
