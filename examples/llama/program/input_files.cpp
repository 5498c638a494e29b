#include "examples/llama/program/input_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "examples/llama/base.hpp"
#include "examples/llama/files/file_error.hpp"

namespace llama {

namespace fs = std::filesystem;

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator next(folder, error); !error && next != fs::directory_iterator(); next.increment(error)) {
    entries.push_back(next->path());
  }
  if (error) {
    errno = error.value();
    fail_last_call(folder, "cannot read the folder");
  }
  return entries;
}

std::vector<fs::path> files_at(const fs::path& path, const std::vector<std::string_view>& extensions) {
  std::error_code ignored;  // who opens the file says what is wrong with it
  if (!fs::is_directory(path, ignored)) return {path};
  std::vector<fs::path> files;
  for (fs::path& entry : entries_of(path)) {
    const bool wanted = std::ranges::find(extensions, entry.extension().string()) != extensions.end();
    if (wanted) files.push_back(std::move(entry));
  }
  if (files.empty()) {
    fail("the folder ", path.string(), " holds no *", fmt::format("{}", fmt::join(extensions, " or *")));
  }
  std::ranges::sort(files);
  return files;
}

}  // namespace llama
