#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/examples/llama/files.hpp"

namespace llama::test {

/// What a program left that ran to its end.
struct ProcessResult {
  int status;
  std::string out, err;
};

/// Runs `program` without input. Neither it nor the arguments are read by a shell; `other_streams` is, and comes last:
/// "2>/dev/full" for example.
inline ProcessResult run_process(const std::string& program, const std::vector<std::string>& arguments,
                                 const std::string& other_streams = "") {
  const auto quoted = [](const std::string& text) {
    std::string result = "'";
    for (const char c : text) result += c == '\'' ? "'\\''" : std::string(1, c);
    return result + "'";
  };
  std::string command = quoted(program);
  for (const std::string& argument : arguments) command += ' ' + quoted(argument);
  const TemporaryFolder streams;
  command +=
      " >" + quoted(streams.path() / "out") + " 2>" + quoted(streams.path() / "err") + " </dev/null " + other_streams;
  const int status = std::system(command.c_str());
  REQUIRE(WIFEXITED(status));
  return {WEXITSTATUS(status), read(streams.path() / "out"), read(streams.path() / "err")};
}

}  // namespace llama::test
