#pragma once

#include <cstdint>
#include <filesystem>
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

/// Of a model on disk: of its configuration and of the sizes and samples of its weights, as reading all of them would
/// take long. Throws `std::invalid_argument` if a file cannot be read.
std::uint64_t model_fingerprint(const std::filesystem::path& model);

}  // namespace llama
