#pragma once

#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace llama {

/// Thrown when a file cannot be read or written, or holds what it must not. The message names the file first.
class file_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws `file_error` with the message "PATH: WHAT: the reason of the last call of the system that failed".
[[noreturn]] inline void fail_last_call(const std::filesystem::path& path, std::string_view what) {
  const int code = errno;
  throw file_error(path.string() + ": " + std::string(what) + ": " + std::generic_category().message(code));
}

}  // namespace llama
