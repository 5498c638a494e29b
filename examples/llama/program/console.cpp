#include "examples/llama/program/console.hpp"

#include <cstdio>
#include <string>

#include "examples/llama/files/printable.hpp"

namespace llama {

void print_text(std::string_view text) noexcept {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void print_status(std::string_view text) noexcept {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void print_message(std::string_view text) noexcept {
  constexpr std::size_t longest = 4000;
  try {
    std::string line = printable(text.substr(0, longest));
    if (text.size() > longest) line += "...";
    print_status(line + '\n');
  } catch (const std::exception&) {
    print_status("not enough memory for a message\n");
  }
}

}  // namespace llama
