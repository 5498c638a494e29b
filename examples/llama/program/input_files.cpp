#include "examples/llama/program/input_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "examples/llama/base.hpp"

namespace llama {

namespace fs = std::filesystem;

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) fail("the file ", path.string(), " cannot be read");
  return text;
}

std::vector<fs::path> files_at(const fs::path& path, std::initializer_list<std::string_view> extensions) {
  if (!fs::is_directory(path)) return {path};
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
