#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "examples/llama/files.hpp"
#include "examples/llama/model/generate_program.hpp"
#include "examples/llama/report/page_data.hpp"

using namespace llama;
using nlohmann::json;

namespace {

json read_json(const std::string& path) { return json::parse(test::read(path)); }

}  // namespace

TEST_CASE("--report holds the active sets of --trace and the figures of --json") {
  for (const bool compare : {false, true}) {
    for (const char* schedule : {"1:0.6,2:0.5,3:0.5", "static@2:0.4", "dense"}) {
      CAPTURE(compare);
      CAPTURE(schedule);
      const test::GenerateProgram program;
      std::vector<std::string> arguments = {"--schedule", schedule,          "--max-tokens", "20",
                                            "--json",     program.path("j"), "--trace",      program.path("t"),
                                            "--report",   program.path("r"), "--score",      "mean:2"};
      if (compare) arguments.insert(arguments.end(), {"--compare", "--repeats", "1"});
      REQUIRE(program.run_ids(arguments).status == 0);
      const json data = test::page_data(test::read(program.path("r")));
      const json trace = read_json(program.path("t"));
      const json figures = read_json(program.path("j"));
      CHECK(data.at("figures") == figures);
      CHECK(data.at("layers") == 4);
      CHECK(data.at("prompt") == 40);
      CHECK(data.at("texts").is_null());
      const json& run = compare ? figures.at("lazy") : figures;
      REQUIRE(data.at("ids").size() == 60);
      CHECK(data.at("ids")[1] == (1 * 37 + 11) % 94 + 3);
      for (std::size_t i = 0; i < 20; ++i) CHECK(data.at("ids")[40 + i] == run.at("tokens")[i]);

      const auto steps = test::active_layers(data);
      REQUIRE(steps.size() == trace.size());
      bool pruned = false;
      for (std::size_t s = 0; s < steps.size(); ++s) {
        REQUIRE(steps[s].size() == 40 + s);
        for (int layer = 0; layer < 4; ++layer) {
          std::vector<int> active;
          for (std::size_t t = 0; t < steps[s].size(); ++t) {
            if (steps[s][t] > layer) active.push_back(static_cast<int>(t));
          }
          CHECK(trace[s].at("active")[static_cast<std::size_t>(layer)] == active);
          pruned |= active.size() < steps[s].size();
        }
      }
      CHECK(pruned == (std::string(schedule) != "dense"));
    }
  }
}

TEST_CASE("--report of the same run differs in its times only") {
  const auto data = [] {
    const test::GenerateProgram program;
    REQUIRE(program.run_ids({"--schedule", "1:0.5", "--max-tokens", "8", "--report", program.path("r")}).status == 0);
    CHECK(program.files() == std::set<std::string>{"ids", "r"});
    json result = test::page_data(test::read(program.path("r")));
    for (const char* time : {"ttft_ms", "decode_ms", "decode_ms_per_token", "step_ms"})
      result.at("figures").erase(time);
    return result;
  };
  CHECK(data() == data());
}

TEST_CASE("--report is in the help; a file that cannot be written is an error, and a failed run leaves none") {
  const test::GenerateProgram program;
  CHECK(program.run({"--help"}).out.find("--report FILE") != std::string::npos);
  const auto result = program.run_ids({"--report", program.path("none/r")});
  CHECK(result.status == 1);
  CHECK(result.err.find("none/r: the file cannot be written") != std::string::npos);
  CHECK(result.out.empty());
  CHECK(program.run_ids({"--report", program.path("r"), "--schedule", "9:0.5"}).status == 1);
  CHECK(program.files() == std::set<std::string>{"ids"});
}

TEST_CASE("stories260K: --report has the prompt's and the answer's words") {
  const auto folder = test::real_input("stories260K");
  if (!std::filesystem::exists(folder)) {
    MESSAGE("skipped: the model stories260K is absent");
    return;
  }
  const test::GenerateProgram program;
  const std::string prompt = "Once upon a time, \u540d </script><b> sat in\na tree";
  REQUIRE(program
              .run({"--model", folder / "stories260K.bin", "--tokenizer", folder / "tok512.bin", "--prompt", prompt,
                    "--max-tokens", "24", "--schedule", "2:0.5", "--report", program.path("r")})
              .status == 0);
  const json data = test::page_data(test::read(program.path("r")));
  const std::size_t prompt_tokens = data.at("prompt");
  std::string words[2];
  for (std::size_t t = 0; t < data.at("texts").size(); ++t) {
    const json& text = data.at("texts")[t];
    if (!text.is_null()) words[t < prompt_tokens ? 0 : 1] += text.get<std::string>();
  }
  CHECK(words[0] == prompt);
  CHECK(words[1] == data.at("figures").at("text").get<std::string>());
  CHECK(!words[1].empty());
}
