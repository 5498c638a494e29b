#pragma once

#include <array>
#include <charconv>
#include <cstddef>
#include <sstream>
#include <stdexcept>
#include <type_traits>

/// \file
/// What all parts of the host use. Needs nothing of the library.

namespace llama {

/// Count or offset of rows, layers, tokens and bytes; the library's `Index` is the same type.
using Index = std::ptrdiff_t;

/// Writes `part`; a number with all the digits that tell it from its neighbours: 1.0000001 is not 1.
template <class Part>
void write_exactly(std::ostream& out, const Part& part) {
  if constexpr (std::is_floating_point_v<Part>) {
    std::array<char, 64> text;
    out.write(text.data(), std::to_chars(text.data(), text.data() + text.size(), part).ptr - text.data());
  } else {
    out << part;
  }
}

/// Throws `std::invalid_argument` with all parts written one after the other. The message names the value, the place
/// and the allowed range.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream message;
  (write_exactly(message, parts), ...);
  throw std::invalid_argument(message.str());
}

}  // namespace llama
