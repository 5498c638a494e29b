#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "examples/llama/files/descriptor.hpp"

namespace llama {

/// Finished work on disk, so that an interrupted program goes on where it stopped: a file of JSON lines, first the
/// settings on which the rest depends, then one line for each piece of work as soon as it is done. One program at a
/// time has the file.
class ResumableLog {
 public:
  /// What reads an earlier line. May throw; the message gets the line's FILE:LINE in front.
  using OnLine = std::function<void(const nlohmann::json& line)>;

  /// Opens the file, a new one if there is none, for this program alone, and reads it. Throws `file_error`, with the
  /// file as it was, if it cannot be read or written, is a link, is in use by another program, or holds something and
  /// not `resume`.
  ResumableLog(std::filesystem::path path, bool resume);
  ResumableLog(const ResumableLog&) = delete;
  ResumableLog& operator=(const ResumableLog&) = delete;
  /// Removes a file without work: it would refuse other settings for nothing.
  ~ResumableLog();

  /// Takes the settings, which the first `append` writes, or goes on after what earlier programs wrote with the same. A
  /// last line that was cut off is dropped. Throws `file_error`, with the file as it was, if it is something else's or
  /// damaged, or was started with other settings, which the message names. Must be called once, before `append`.
  void start(const nlohmann::ordered_json& settings, const OnLine& on_line);

  /// A line that the next `append` writes before its own, both or none of them. For what belongs to no piece of work.
  void before_next(const nlohmann::ordered_json& line);

  /// Throws `file_error` if the line cannot be written; the file then ends after the line before.
  void append(const nlohmann::ordered_json& line);

  const std::filesystem::path& path() const { return path_; }

 private:
  void check_header(const std::string& line, const nlohmann::ordered_json& settings) const;

  std::filesystem::path path_;
  Descriptor file_;
  std::string earlier_;    // what the file holds until it is started
  std::string header_;     // the settings' line, and those of `before_next`, until they are written
  std::int64_t size_ = 0;  // bytes of whole lines
};

}  // namespace llama
