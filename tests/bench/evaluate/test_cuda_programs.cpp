#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/examples/llama/embedded_model.hpp"
#include "tests/examples/llama/process.hpp"

using namespace llama;
using Json = nlohmann::json;

namespace {

/// The programs with `--device cuda` on the embedded model.
class Programs {
 public:
  /// What the program prints on the CPU and on the device.
  struct Outputs {
    std::string cpu, cuda;
  };
  using Arguments = std::vector<std::string>;

  Outputs generate(const std::string& schedule, const Arguments& on_device) const {
    const std::string prompt = folder_.write("prompt", test::embedded_prompt);
    return both(LAZYLLM_GENERATE, {"--prompt-file", prompt, "--schedule", schedule, "--max-tokens", "8"}, on_device,
                [](const std::string& out) { return out; });
  }

  /// Of lazyllm-evaluate: its items, as --json has them.
  Outputs evaluate(Arguments arguments) const {
    const Json line = {{"_id", "one"}, {"prompt", test::embedded_prompt}, {"answers", {test::embedded_answer}}};
    const std::string data = folder_.write("tiny_multi_doc_qa.jsonl", line.dump() + "\n");
    const std::string report = folder_.path() / "report.json";
    arguments.insert(arguments.end(), {"--data", data, "--max-tokens", "8", "--speed-items", "0", "--json", report});
    return both(LAZYLLM_EVALUATE, arguments, {}, [&](const std::string&) { return test::read(report); });
  }

 private:
  template <class Read>
  static Outputs both(const std::string& program, Arguments arguments, const Arguments& on_device, const Read& read) {
    const auto run = [&] {
      const test::ProcessResult result = test::run_process(program, arguments);
      CAPTURE(result.err);
      REQUIRE(result.status == 0);
      return read(result.out);
    };
    arguments.insert(arguments.end(), {"--model", test::embedded_model});
    Outputs outputs;
    outputs.cpu = run();
    arguments.insert(arguments.end(), {"--device", "cuda"});
    arguments.insert(arguments.end(), on_device.begin(), on_device.end());
    outputs.cuda = run();
    return outputs;
  }

  test::TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("lazyllm-generate answers on a CUDA device as on the CPU, with CUDA graphs, too") {
  const Programs programs;
  for (const char* schedule : {"dense", "4:0.6,8:0.5"}) {
    for (const std::vector<std::string>& on_device :
         {std::vector<std::string>(), std::vector<std::string>{"--cuda-graphs"}}) {
      CAPTURE(schedule);
      const auto outputs = programs.generate(schedule, on_device);
      CHECK(outputs.cuda == outputs.cpu);
      CHECK(outputs.cuda.find(test::embedded_answer) != std::string::npos);
    }
  }
}

TEST_CASE("lazyllm-evaluate finds on a CUDA device what it finds on the CPU") {
  const Programs programs;
  for (const char* method : {"dense", "lazy", "random-drop", "compress"}) {
    CAPTURE(method);
    const Programs::Outputs outputs =
        programs.evaluate({"--method", method, "--schedule", "4:0.6,8:0.5", "--keep", "0.8"});
    const Json found = Json::parse(outputs.cuda), expected = Json::parse(outputs.cpu);
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
