#pragma once

#include <array>
#include <charconv>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace lazyllm {

/// Thrown when an argument is outside its allowed range, or a call comes at the wrong time. The message names the
/// value, the place and the range.
class invalid_argument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// Thrown when a call of CUDA or of one of its libraries fails. The message names the call and the reason.
class cuda_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {

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

/// Throws `invalid_argument` with all parts written one after the other.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream message;
  message << "lazyllm: ";
  (write_exactly(message, parts), ...);
  throw invalid_argument(message.str());
}

}  // namespace detail
}  // namespace lazyllm
