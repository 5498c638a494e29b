#pragma once

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "tests/examples/llama/process.hpp"
#include "tests/support/source_folder.hpp"

namespace llama::test {

/// A small random checkpoint of four layers, which is run by token ids.
inline const std::filesystem::path small_model =
    lazyllm::test::source_folder() / "tests/reference/fixtures/lazyllm/models/mha_4_layers";

/// lazyllm-generate as a user runs it, in a folder of its own that goes away with the object.
class GenerateProgram {
 public:
  using Result = ProcessResult;

  GenerateProgram() {
    std::string ids;
    for (int i = 0; i < 40; ++i) ids += std::to_string((i * 37 + 11) % 94 + 3) + ' ';
    write("ids", ids);
  }

  Result run(std::vector<std::string> arguments) const {
    if (std::ranges::find(arguments, "--threads") == arguments.end()) {
      arguments.insert(arguments.end(), {"--threads", "1"});
    }
    return run_process(LAZYLLM_GENERATE, arguments);
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
  TemporaryFolder folder_;
};

}  // namespace llama::test
