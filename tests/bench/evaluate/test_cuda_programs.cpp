#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/examples/llama/embedded_model.hpp"
#include "tests/examples/llama/process.hpp"

using namespace llama;
using Json = nlohmann::json;

namespace {

/// The programs with `--device cuda` on the embedded model. Where there is no device, all that can be seen is that they
/// say so.
class Programs {
 public:
  /// What the program prints on the CPU and on the device; empty without one.
  struct Outputs {
    std::string cpu, cuda;
  };

  Outputs generate(const std::string& schedule) const {
    const std::string prompt = folder_.write("prompt", test::embedded_prompt);
    return both(LAZYLLM_GENERATE, {"--prompt-file", prompt, "--schedule", schedule, "--max-tokens", "8"});
  }

  /// Of lazyllm-evaluate: its items, as --json has them.
  Outputs evaluate(std::vector<std::string> arguments) const {
    const Json line = {{"_id", "one"}, {"prompt", test::embedded_prompt}, {"answers", {test::embedded_answer}}};
    const std::string data = folder_.write("tiny_multi_doc_qa.jsonl", line.dump() + "\n");
    const std::string report = folder_.path() / "report.json";
    arguments.insert(arguments.end(), {"--data", data, "--max-tokens", "8", "--speed-items", "0", "--json", report});
    return both(LAZYLLM_EVALUATE, arguments, [&](const std::string&) { return test::read(report); });
  }

 private:
  static Outputs both(const std::string& program, const std::vector<std::string>& arguments) {
    return both(program, arguments, [](const std::string& out) { return out; });
  }

  template <class Read>
  static Outputs both(const std::string& program, std::vector<std::string> arguments, const Read& read) {
    arguments.insert(arguments.end(), {"--model", test::embedded_model});
    const test::ProcessResult cpu = test::run_process(program, arguments);
    CAPTURE(cpu.err);
    REQUIRE(cpu.status == 0);
    Outputs outputs{read(cpu.out), {}};
    arguments.insert(arguments.end(), {"--device", "cuda"});
    const test::ProcessResult cuda = test::run_process(program, arguments);
    if (cuda.err.find("--device cuda: no CUDA device: ") != std::string::npos) {
      CHECK(cuda.status == 1);
      return {};
    }
    CAPTURE(cuda.err);
    REQUIRE(cuda.status == 0);
    outputs.cuda = read(cuda.out);
    return outputs;
  }

  test::TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("lazyllm-generate answers on a CUDA device as on the CPU, or says that there is none") {
  const Programs programs;
  for (const char* schedule : {"dense", "4:0.6,8:0.5"}) {
    CAPTURE(schedule);
    const auto [cpu, cuda] = programs.generate(schedule);
    CHECK(cuda == cpu);
    if (!cuda.empty()) CHECK(cuda.find(test::embedded_answer) != std::string::npos);
  }
}

TEST_CASE("lazyllm-evaluate finds on a CUDA device what it finds on the CPU, or says that there is none") {
  const Programs programs;
  for (const char* method : {"dense", "lazy", "random-drop", "compress"}) {
    CAPTURE(method);
    const auto [cpu, cuda] = programs.evaluate({"--method", method, "--schedule", "4:0.6,8:0.5", "--keep", "0.8"});
    if (cuda.empty()) continue;
    const Json found = Json::parse(cuda), expected = Json::parse(cpu);
    CHECK(found.at("settings").at("device") == "cuda");
    const Json &runs = found.at("items")[0].at("runs"), &expected_runs = expected.at("items")[0].at("runs");
    REQUIRE(runs.size() == expected_runs.size());
    for (std::size_t i = 0; i < runs.size(); ++i) {
      for (const char* member : {"prediction", "score", "tokens", "operations", "computed_percent"}) {
        CAPTURE(member);
        CHECK(runs[i].at(member) == expected_runs[i].at(member));
      }
    }
  }
}
