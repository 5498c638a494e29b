#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace llama {

/// A whole file mapped read-only into memory. Pages are read from disk when they are first touched.
/// Where the file is shortened while it is mapped, reading what was cut off raises SIGBUS.
class MappedFile {
 public:
  /// Throws `file_error` when `path` is missing, empty, unreadable or not a regular file.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// All bytes of the file; valid as long as this object lives.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace llama
