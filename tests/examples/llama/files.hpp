#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include "support/source_folder.hpp"

namespace llama::test {

/// A real input that the repository does not hold; may be absent.
inline std::filesystem::path real_input(const std::string& name) {
  const char* folder = std::getenv("LAZYLLM_TEST_DATA");
  return (folder ? std::filesystem::path(folder) : lazyllm::test::source_folder() / "../shared/data") / name;
}

/// A file that examples/models/fetch.sh or tests/reference/make_pretrained_reference.py makes; may be absent.
inline std::filesystem::path cached(const std::string& name) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path folder = cache != nullptr && *cache != 0
                                           ? std::filesystem::path(cache)
                                           : std::filesystem::path(home ? home : "") / ".cache";
  return folder / "lazyllm" / name;
}

/// All of a file; empty if there is none.
inline std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// At namespace scope in a program that can test nothing without an input: where `there` is false, the program ends
/// before its tests with the line that ctest takes for skipped.
struct NeedsInput {
  NeedsInput(bool there, std::string_view what) {
    if (there) return;
    std::cout << "skipped: all of this program: no " << what << std::endl;
    std::exit(0);
  }
};

/// An empty folder that goes away, with everything in it, with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lazyllm_XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("cannot create " + pattern);
    path_ = pattern;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }

  const std::filesystem::path& path() const { return path_; }

  std::filesystem::path write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace llama::test
