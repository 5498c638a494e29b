#pragma once

#include <fmt/format.h>

#include <exception>
#include <string_view>
#include <utility>

/// \file
/// What programs print. None of it throws because of a full disk or a closed pipe: on the standard error there is
/// nobody left to tell, and what happened to the standard output `run_program` looks at in the end.

namespace llama {

/// Writes `text` to the standard output as it is, at once.
void print_text(std::string_view text) noexcept;

/// Writes `text` to the standard error as it is, at once.
void print_status(std::string_view text) noexcept;

/// Writes a line to the standard error: `text` made `printable` and cut after some thousand bytes.
void print_message(std::string_view text) noexcept;

/// Prints to the standard output.
template <class... Parts>
void print(fmt::format_string<Parts...> format, Parts&&... parts) {
  print_text(fmt::format(format, std::forward<Parts>(parts)...));
}

/// Prints a line to the standard error. Its parts may come from files that nobody has checked.
template <class... Parts>
void say(fmt::format_string<Parts...> format, Parts&&... parts) noexcept {
  try {
    print_message(fmt::format(format, std::forward<Parts>(parts)...));
  } catch (const std::exception&) {
    print_status("not enough memory for a message\n");
  }
}

}  // namespace llama
