#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

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

/// Throws `invalid_argument` with all parts written one after the other.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream message;
  message << "lazyllm: ";
  (message << ... << parts);
  throw invalid_argument(message.str());
}

}  // namespace detail
}  // namespace lazyllm
