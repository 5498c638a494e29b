#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "examples/llama/files/descriptor.hpp"
#include "examples/llama/files/file_error.hpp"

namespace llama {

/// A file that appears under its name only once it is complete. Made before long work starts, so that a path that
/// cannot be written is an error then and not at the end. Until `commit` nothing is left on disk, and within it only
/// SIGKILL leaves something: a file named .lazyllm-*.
class OutputFile {
 public:
  /// Throws `file_error` if a file cannot be created in the folder, or the path is something that it would replace: a
  /// directory, a device, a link.
  explicit OutputFile(std::filesystem::path path);

  /// Writes all of the file, in the place of what is there. Throws `file_error` if that fails, with what is there as it
  /// was. May be called again.
  void commit(std::string_view content) const;

 private:
  std::filesystem::path path_;
  Descriptor folder_;
};

/// Writes all of `bytes`. `path` is for messages. Throws `file_error` if that fails.
void write_all(const Descriptor& file, const std::filesystem::path& path, std::string_view bytes);

}  // namespace llama
