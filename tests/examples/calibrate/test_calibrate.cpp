#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "examples/calibrate/agreement.hpp"
#include "examples/calibrate/prompts.hpp"
#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/program/pruning_options.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"
#include "tests/examples/llama/process.hpp"
#include "tests/examples/llama/toy_model.hpp"

using namespace llama;

namespace {

/// lazyllm-calibrate as a user runs it, in a folder of its own with a toy model and four prompts.
class CalibrateProgram {
 public:
  CalibrateProgram() {
    std::string lines;
    for (int i = 0; i < 4; ++i) {
      std::string prompt;
      for (int j = 0; j < 120; ++j) prompt += static_cast<char>('!' + (j * j * 7 + i * 31) % 90);
      lines += nlohmann::json{{"prompt", prompt}, {"category", i % 2 == 0 ? "even" : "odd"}}.dump() + "\n";
    }
    folder_.write("prompts.jsonl", lines);
  }

  test::ProcessResult run(const std::string& out, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"--model",   toy_.model, "--tokenizer", toy_.tokenizer,
                                          "--out",     path(out),  "--data",      path("prompts.jsonl"),
                                          "--threads", "1",        "--tokens",    "4",
                                          "--runs",    "25"};
    arguments.insert(arguments.end(), more.begin(), more.end());  // the last value of an option counts
    return test::run_process(LAZYLLM_CALIBRATE, arguments);
  }

  std::string path(const std::string& name) const { return folder_.path() / name; }
  std::string write(const std::string& name, const std::string& bytes) const { return folder_.write(name, bytes); }
  nlohmann::json read(const std::string& name) const { return nlohmann::json::parse(test::read(path(name))); }
  const test::ToyModel& toy() const { return toy_; }

 private:
  test::TemporaryFolder folder_;
  test::ToyModel toy_{folder_};
};

/// All but the times.
nlohmann::json untimed(nlohmann::json file) {
  for (auto& preset : file["presets"]) preset["measured"].erase("ttft_speedup");
  return file;
}

}  // namespace

TEST_CASE("calibrate: presets whose figures a run of the preset confirms") {
  const CalibrateProgram program;
  const auto result = program.run("schedules.json");
  CAPTURE(result.err);
  REQUIRE(result.status == 0);
  CHECK(result.err.empty());
  for (const char* part : {" 1%: ", " 5%: ", "10%: ", "TTFT speedup"})
    CHECK(result.out.find(part) != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(program.path("schedules.json.part")));

  const nlohmann::json file = program.read("schedules.json");
  CHECK(file["model"] == "toy.bin");
  CHECK(file["default"] == "1%");
  CHECK(file["presets"].size() == 3);

  const Checkpoint checkpoint(program.toy().model);
  const auto model = open_model(checkpoint.config(), weights_of(checkpoint), {});
  const auto tokenizer = open_tokenizer(program.toy().tokenizer, checkpoint.config().vocab);
  const auto dense = model->dense(256);
  double fastest = 1;
  for (const int percent : {1, 5, 10}) {
    const std::string name = std::to_string(percent) + "%";
    CAPTURE(name);
    const lazyllm::Preset preset = read_preset(program.path("schedules.json") + "#" + name, test::ToyModel::layers);
    const auto lazy = model->lazy(256, make_pruner(preset));
    std::vector<Outcome> outcomes;
    double dense_operations = 0;
    double lazy_operations = 0;
    std::vector<SearchPrompt> prompts;
    for (const Prompt& prompt : read_prompts(program.path("prompts.jsonl"))) {
      const double dense_before = dense->operations();
      const double lazy_before = lazy->operations();
      const std::vector<TokenId> tokens = tokenizer->encode(prompt.text, true);
      dense->clear();
      dense->step(tokens);
      lazy->clear();
      lazy->step(tokens);
      dense_operations += dense->operations() - dense_before;
      lazy_operations += lazy->operations() - lazy_before;
      outcomes.push_back(agree(*lazy, make_reference(*dense, tokens, 4, tokenizer->stop_tokens())));
      prompts.push_back({prompt.category, outcomes.back().positions});
    }
    const Agreement agreement = summarize(prompts, outcomes);
    const nlohmann::json& measured = file["presets"][name]["measured"];
    CHECK(measured["loss"] == doctest::Approx(agreement.loss).epsilon(1e-5));
    CHECK(measured["first_token_match"] == doctest::Approx(agreement.first_token_match));
    CHECK(std::abs(measured["kl"].get<double>() - agreement.kl) < 1e-5);
    for (const char* category : {"even", "odd"}) {
      CHECK(measured["category_loss"][category] == doctest::Approx(agreement.category_loss.at(category)).epsilon(1e-5));
    }
    CHECK(measured["prompts"] == 4);
    CHECK(measured["tokens"] == agreement.tokens);
    CHECK(measured["ideal_ttft_speedup"] == doctest::Approx(dense_operations / lazy_operations).epsilon(1e-5));
    CHECK(measured["ttft_speedup"] > 0);
    CHECK(agreement.loss <= percent / 100.0);
    fastest = std::max(fastest, measured["ideal_ttft_speedup"].get<double>());
  }
  CHECK(fastest > 1);
}

TEST_CASE("calibrate: an interrupted search goes on and ends as if it had not been") {
  const CalibrateProgram program;
  REQUIRE(program.run("whole.json").status == 0);
  const std::string log = test::read(program.path("whole.json.log.jsonl"));
  const auto lines = std::ranges::count(log, '\n');
  REQUIRE(lines > 20);

  program.write("part.json.log.jsonl", log.substr(0, log.size() / 2));
  REQUIRE(program.run("part.json", {"--resume"}).status == 0);
  CHECK(test::read(program.path("part.json.log.jsonl")) == log);
  CHECK(untimed(program.read("part.json")) == untimed(program.read("whole.json")));

  // An outcome that is in the log is believed, not measured again.
  const std::string wrong = std::regex_replace(log, std::regex("\"equal\":[0-9]+"), "\"equal\":0");
  program.write("wrong.json.log.jsonl", wrong);
  REQUIRE(program.run("wrong.json", {"--resume", "--runs", "1"}).status == 0);
  CHECK(program.read("wrong.json")["presets"]["1%"]["schedule"] == "dense");
  CHECK(program.read("wrong.json")["presets"]["1%"]["measured"]["loss"] == 1);
  // Without --resume no search is thrown away.
  const std::string before = test::read(program.path("wrong.json.log.jsonl"));
  const auto anew = program.run("wrong.json");
  CHECK(anew.status == 1);
  CHECK(anew.err.find("wrong.json.log.jsonl: holds earlier work: go on with it by --resume") != std::string::npos);
  CHECK(test::read(program.path("wrong.json.log.jsonl")) == before);

  const auto other = program.run("whole.json", {"--resume", "--prompts-limit", "3"});
  CHECK(other.status == 1);
  CHECK(other.err.find("other settings: ") != std::string::npos);
  CHECK(other.err.find("prompts was 4, is 3") != std::string::npos);
  CHECK(test::read(program.path("whole.json.log.jsonl")) == log);
}

TEST_CASE("calibrate: options are obeyed") {
  const CalibrateProgram program;
  REQUIRE(program.run("few.json", {"--runs", "3", "--prompts-limit", "2", "--dtype", "bf16"}).status == 0);
  const std::string log = test::read(program.path("few.json.log.jsonl"));
  CHECK(std::ranges::count(log, '\n') <= 1 + 3 * 2);
  CHECK(log.find("\"dtype\":\"bf16\"") != std::string::npos);
  CHECK(program.read("few.json")["presets"]["1%"]["measured"]["prompts"] == 2);
}

TEST_CASE("calibrate: prompts longer than the model can run lose their middle") {
  const CalibrateProgram program;
  const std::string text = program.write("long.txt", std::string(3000, 'a') + std::string(3000, 'b'));
  const auto result = program.run("long.json", {"--data", text, "--runs", "1"});
  CAPTURE(result.err);
  CHECK(result.status == 0);
}

TEST_CASE("calibrate: mistakes are errors that name them, and write no file") {
  const CalibrateProgram program;
  const auto check = [&](const std::vector<std::string>& arguments, int status,
                         std::initializer_list<const char*> parts) {
    const auto result = program.run("out.json", arguments);
    CAPTURE(result.err);
    CHECK(result.status == status);
    for (const char* part : parts) CHECK(result.err.find(part) != std::string::npos);
    CHECK_FALSE(std::filesystem::exists(program.path("out.json")));
    CHECK_FALSE(std::filesystem::exists(program.path("out.json.part")));
  };
  check({"--runs", "0"}, 2, {"--runs"});
  check({"--prompts-limit", "0"}, 2, {"--prompts-limit", "at least 1"});
  check({"--dtype", "f64"}, 2, {"--dtype"});
  check({"--dtype", "f16"}, 1, {"--dtype f16 is not one of f32 and bf16, the types on the CPU"});
#ifndef LAZYLLM_HAS_CUDA
  check({"--device", "cuda"}, 1, {"--device cuda: this build has no CUDA"});
#endif
  check({"--unknown"}, 2, {"--unknown"});
  check({"--tokens", "511"}, 1, {"--tokens 511", "1 to 510"});
  check({"--data", program.path("none.jsonl")}, 1, {"none.jsonl", "No such file"});
  check({"--data", program.write("bad.jsonl", "{}")}, 1, {"bad.jsonl:1"});
  const auto result = program.run("none/out.json");
  CHECK(result.status == 1);
  CHECK(result.err.find("none/out.json") != std::string::npos);
}
