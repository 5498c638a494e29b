#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "examples/llama/files/file_error.hpp"

namespace llama {

/// Thrown when a checkpoint cannot be used: damaged, hostile or of an unsupported kind.
/// The message starts with the file and names the value found and what is allowed.
class checkpoint_error : public file_error {
 public:
  using file_error::file_error;
};

/// Throws `checkpoint_error` with the message "place: text". `place` is the file the text is about.
template <class... Args>
[[noreturn]] void reject(std::string_view place, fmt::format_string<Args...> text, Args&&... args) {
  throw checkpoint_error(fmt::format("{}: {}", place, fmt::format(text, std::forward<Args>(args)...)));
}

}  // namespace llama
