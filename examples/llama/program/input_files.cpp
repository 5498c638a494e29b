#include "examples/llama/program/input_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "examples/llama/base.hpp"

namespace llama {

namespace fs = std::filesystem;

std::vector<fs::path> files_at(const fs::path& path, std::initializer_list<std::string_view> extensions) {
  std::error_code ignored;  // who opens the file says what is wrong with it
  if (!fs::is_directory(path, ignored)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path)) {
    const bool wanted = std::ranges::find(extensions, entry.path().extension().string()) != extensions.end();
    if (wanted && entry.is_regular_file()) files.push_back(entry.path());
  }
  if (files.empty()) {
    fail("the folder ", path.string(), " holds no *", fmt::format("{}", fmt::join(extensions, " or *")));
  }
  std::ranges::sort(files);
  return files;
}

}  // namespace llama
