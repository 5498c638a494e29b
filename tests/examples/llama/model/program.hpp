#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "examples/llama/tokenizer/support.hpp"

namespace lazyllm::llama::test {

/// A small random checkpoint of four layers, which is run by token ids.
inline const std::filesystem::path small_model =
    std::filesystem::path(LAZYLLM_SOURCE_DIR) / "tests/reference/fixtures/lazyllm/models/mha_4_layers";

/// lazyllm-generate as a user runs it, in a folder of its own that goes away with the object.
class Program {
 public:
  struct Result {
    int status;
    std::string out, err;
  };

  Program() {
    std::string ids;
    for (int i = 0; i < 40; ++i) ids += std::to_string((i * 37 + 11) % 94 + 3) + ' ';
    write("ids", ids);
  }

  Result run(const std::vector<std::string>& arguments) const {
    std::string command = quoted(LAZYLLM_GENERATE);
    if (std::ranges::find(arguments, "--threads") == arguments.end()) command += " --threads 1";
    for (const std::string& argument : arguments) command += ' ' + quoted(argument);
    const TemporaryFolder streams;
    command += " >" + quoted(streams.path() / "out") + " 2>" + quoted(streams.path() / "err") + " </dev/null";
    const int status = std::system(command.c_str());
    REQUIRE(WIFEXITED(status));
    return {WEXITSTATUS(status), read(streams.path() / "out"), read(streams.path() / "err")};
  }

  /// Runs the small model on the file `ids` of 40 token ids.
  Result run_ids(std::vector<std::string> arguments) const {
    const std::vector<std::string> input = {"--model", small_model, "--token-ids", path("ids")};
    arguments.insert(arguments.begin(), input.begin(), input.end());
    return run(arguments);
  }

  std::string path(const std::string& name) const { return folder_.path() / name; }
  std::string write(const std::string& name, const std::string& bytes) const { return folder_.write(name, bytes); }

  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) names.insert(entry.path().filename());
    return names;
  }

 private:
  static std::string quoted(const std::string& text) {
    std::string result = "'";
    for (const char c : text) result += c == '\'' ? "'\\''" : std::string(1, c);
    return result + "'";
  }

  TemporaryFolder folder_;
};

}  // namespace lazyllm::llama::test
