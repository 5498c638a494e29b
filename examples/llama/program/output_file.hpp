#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "examples/llama/base.hpp"

namespace llama {

/// A file that appears under its name only once it is complete. Opened before long work starts, so that a path that
/// cannot be written is an error then and not at the end.
class OutputFile {
 public:
  /// Throws `std::invalid_argument` if the file cannot be created, or the path is something that it would replace:
  /// a directory, a device, a link.
  explicit OutputFile(std::string path)
      : path_(std::move(path)), part_(path_ + ".part"), stream_(part_, std::ios::binary) {
    std::error_code ignored;
    const auto type = std::filesystem::symlink_status(path_, ignored).type();
    const bool free = type == std::filesystem::file_type::not_found || type == std::filesystem::file_type::regular;
    if (stream_ && free) return;
    std::filesystem::remove(part_, ignored);
    fail("the file ", path_, " cannot be written", free ? "" : ": it is there and not a regular file");
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile() {
    std::error_code ignored;
    std::filesystem::remove(part_, ignored);
  }

  /// Writes all of the file. Throws `std::invalid_argument` if that fails.
  void commit(std::string_view content) {
    stream_.write(content.data(), static_cast<std::streamsize>(content.size()));
    stream_.close();
    std::error_code error;
    if (stream_) std::filesystem::rename(part_, path_, error);
    if (!stream_ || error) fail("the file ", path_, " cannot be written");
  }

 private:
  std::string path_;
  std::string part_;
  std::ofstream stream_;
};

}  // namespace llama
