#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/examples/llama/files.hpp"

namespace llama::test {

/// The prompts of LongBench, where they are.
class LongBench {
 public:
  static bool is_there() { return std::filesystem::exists(real_input("longbench")); }

  /// The prompt in line `line`, counted from 1, of file `name`.
  std::string prompt(const std::string& name, std::size_t line) {
    const auto [entry, is_new] = files_.try_emplace(name);
    std::ifstream file(is_new ? real_input("longbench/" + name) : std::filesystem::path());
    for (std::string text; is_new && std::getline(file, text);) entry->second.push_back(nlohmann::json::parse(text));
    REQUIRE(line <= entry->second.size());
    return entry->second[line - 1].at("prompt");
  }

 private:
  std::map<std::string, std::vector<nlohmann::json>> files_;
};

}  // namespace llama::test
