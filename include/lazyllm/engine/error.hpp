#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace lazyllm {

/// Base of all errors that the library throws.
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

/// Throws an `Error` with all parts written one after the other.
template <class Error = invalid_argument, class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream message;
  message << "lazyllm: ";
  (message << ... << parts);
  throw Error(message.str());
}

}  // namespace detail
}  // namespace lazyllm
