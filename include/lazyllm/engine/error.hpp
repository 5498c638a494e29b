#pragma once

#include <array>
#include <charconv>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace lazyllm {

/// Base of all errors of the library. They derive from `std::runtime_error`, not from the standard's errors of the same
/// names. Where there is no memory it throws `std::bad_alloc`, and what a policy throws it passes on.
class error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Thrown when a value is outside its allowed range. The message names the value, the place and the range.
class invalid_argument : public error {
 public:
  using error::error;
};

/// Thrown when a call comes at the wrong time: the program that calls the library is wrong, not its data.
class logic_error : public error {
 public:
  using error::error;
};

/// Thrown when a call of CUDA or of one of its libraries fails. The message names the call and the reason.
class cuda_error : public error {
 public:
  using error::error;
};

namespace detail {

/// Writes `part`; a number with all the digits that tell it from its neighbours: 1.0000001 is not 1. Of a view, which
/// is text that a caller gave, no more than its beginning.
template <class Part>
void write_exactly(std::ostream& out, const Part& part) {
  if constexpr (std::is_floating_point_v<Part>) {
    std::array<char, 64> text;
    out.write(text.data(), std::to_chars(text.data(), text.data() + text.size(), part).ptr - text.data());
  } else if constexpr (std::is_same_v<Part, std::string_view>) {
    constexpr std::size_t most = 160;
    out << part.substr(0, most) << (part.size() > most ? "..." : "");
  } else {
    out << part;
  }
}

/// The text of an error: all parts one after the other.
template <class... Parts>
std::string message_of(const Parts&... parts) {
  std::ostringstream message;
  message << "lazyllm: ";
  (write_exactly(message, parts), ...);
  return message.str();
}

/// Throws an `Error` with all parts written one after the other.
template <class Error = invalid_argument, class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(message_of(parts...));
}

}  // namespace detail
}  // namespace lazyllm
