#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace llama {

/// `1 token`, `2 tokens`: for messages, with a noun whose plural takes an s.
template <class Number>
std::string counted(Number count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace llama
