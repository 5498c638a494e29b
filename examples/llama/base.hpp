#pragma once

#include <cstddef>
#include <sstream>
#include <stdexcept>

/// \file
/// What all parts of the host use. Needs nothing of the library.

namespace llama {

/// Count or offset of rows, layers, tokens and bytes; the library's `Index` is the same type.
using Index = std::ptrdiff_t;

/// Throws `std::invalid_argument` with all parts written one after the other. The message names the value, the place
/// and the allowed range.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw std::invalid_argument(message.str());
}

}  // namespace llama
