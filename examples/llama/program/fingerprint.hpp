#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace llama {

/// A number that tells contents apart (FNV-1a), the same on every machine.
class Fingerprint {
 public:
  void add(std::string_view text);
  std::uint64_t value() const { return value_; }

 private:
  void mix(std::string_view bytes);

  std::uint64_t value_ = 0xcbf29ce484222325;
};

/// Of files: their names, without folders, their sizes, and all that they hold, or, of a file above 64 MiB, 1024
/// samples of 64 KiB from its first byte to its last. Throws `file_error` if one cannot be read.
std::uint64_t fingerprint_of(std::span<const std::filesystem::path> files);

}  // namespace llama
