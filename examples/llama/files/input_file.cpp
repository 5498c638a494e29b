#include "examples/llama/files/input_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <new>
#include <sstream>
#include <system_error>

namespace llama {

Descriptor open_input(const std::filesystem::path& path, InputKind kind) {
  const bool pipes = kind == InputKind::file_or_pipe;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) fail_last_call(path, "cannot open the file");
  // Opening a pipe waits for its writer, and must not do so where a pipe is refused.
  const int waiting = pipes && S_ISFIFO(status.st_mode) ? 0 : O_NONBLOCK;
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | waiting));
  if (!file) fail_last_call(path, "cannot open the file");
  if (::fstat(file.get(), &status) != 0) fail_last_call(path, "cannot read the file's size");
  if (!S_ISREG(status.st_mode) && !(pipes && S_ISFIFO(status.st_mode))) {
    throw file_error(fmt::format("{}: not a regular file{}", path.string(), pipes ? " or pipe" : ""));
  }
  return file;
}

bool may_be_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) || error;
}

std::string read_rest(const Descriptor& file, const std::filesystem::path& path) {
  constexpr std::size_t block = 1 << 16;
  std::string text;
  struct stat status {};
  if (::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode)) {
    text.reserve(std::min(static_cast<std::size_t>(status.st_size), max_input_bytes) + block);
  }
  for (;;) {
    const std::size_t size = text.size();
    if (size > max_input_bytes) {
      throw file_error(
          fmt::format("{}: holds more than {} bytes, the most that are read", path.string(), max_input_bytes));
    }
    text.resize(size + block);
    ssize_t count = 0;
    do {
      count = ::read(file.get(), text.data() + size, block);
    } while (count < 0 && errno == EINTR);
    if (count < 0) fail_last_call(path, "cannot be read");
    text.resize(size + static_cast<std::size_t>(count));
    if (count == 0) return text;
  }
}

std::string read_input(const std::filesystem::path& path, InputKind kind) {
  const Descriptor file = open_input(path, kind);
  try {
    return read_rest(file, path);
  } catch (const std::bad_alloc&) {
    throw file_error(fmt::format("{}: not enough memory for what the file holds", path.string()));
  }
}

void for_each_line(const std::filesystem::path& path,
                   const std::function<void(const std::string& line, std::ptrdiff_t number)>& on_line) {
  std::istringstream lines(read_input(path));
  lines.exceptions(std::ios::badbit);  // a failed allocation would read as the end of the file
  std::string line;
  for (std::ptrdiff_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) on_line(line, number);
  }
}

}  // namespace llama
