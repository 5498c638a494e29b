#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/examples/llama/process.hpp"
#include "tests/examples/llama/toy_model.hpp"
#include "tests/support/source_folder.hpp"

using namespace llama;
using Json = nlohmann::json;

namespace {

/// lazyllm-evaluate as a user runs it, in a folder of its own with a toy model and two data sets of it.
class EvaluateProgram {
 public:
  using Result = test::ProcessResult;

  EvaluateProgram() {
    std::filesystem::create_directory(path("data"));
    std::string qa, code;
    for (int i = 0; i < 4; ++i) {
      qa += line(fmt::format("q{}", i), 150 + 40 * i).dump() + "\n";
      code += line(fmt::format("c{}", i), 300).dump() + "\n";
    }
    write("data/tiny_multi_doc_qa.jsonl", qa);
    write("data/tiny_code.jsonl", code);
  }

  static Json line(const std::string& id, int length) {
    std::string prompt;
    for (int i = 0; i < length; ++i) prompt += static_cast<char>('!' + (i * 37 + length + id.back()) % 90);
    return {{"_id", id}, {"prompt", prompt}, {"answers", {"w270"}}, {"all_classes", nullptr}, {"max_tokens", 6}};
  }

  /// Runs the toy model; `arguments` come after the model's, and `--data` is the folder unless they say otherwise.
  Result run(std::vector<std::string> arguments) const {
    std::vector<std::string> all = {"--model", toy_.model, "--tokenizer", toy_.tokenizer, "--threads", "1"};
    if (std::ranges::find(arguments, "--data") == arguments.end()) all.insert(all.end(), {"--data", path("data")});
    all.insert(all.end(), arguments.begin(), arguments.end());
    return run_plain(all);
  }

  static Result run_plain(const std::vector<std::string>& arguments) {
    return test::run_process(LAZYLLM_EVALUATE, arguments);
  }

  /// What --json says of a run that succeeds.
  Json report(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--json", path("report.json")});
    const Result result = run(arguments);
    CAPTURE(result.err);
    REQUIRE(result.status == 0);
    CHECK(!std::filesystem::exists(path("report.json.partial.jsonl")));
    CHECK(!std::filesystem::exists(path("report.json.part")));
    return Json::parse(test::read(path("report.json")));
  }

  std::string path(const std::string& name) const { return folder_.path() / name; }
  std::string write(const std::string& name, const std::string& bytes) const { return folder_.write(name, bytes); }

 private:
  test::TemporaryFolder folder_;
  test::ToyModel toy_{folder_};
};

/// The items without what takes time.
Json without_times(Json items) {
  for (Json& item : items) {
    item.erase("timing");
    for (Json& run : item.at("runs")) {
      run.erase("ttft_ms");
      run.erase("total_ms");
    }
  }
  return items;
}

void check_fails(const EvaluateProgram::Result& result, int status, std::initializer_list<std::string> parts) {
  CAPTURE(result.err);
  CHECK(result.status == status);
  CHECK(result.out.empty());
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(result.err.find(part) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("every method runs and says what it did") {
  const EvaluateProgram program;
  const auto report = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--speed-items", "1", "--repeats", "1"});
    return program.report(arguments);
  };
  const Json dense = report({"--method", "dense"});
  CHECK(dense.at("settings").at("method") == "dense");
  CHECK(dense.at("settings").at("isa").is_string());  // a log goes on with the same one only
  CHECK(dense.at("overall").at("items") == 8);
  CHECK(dense.at("overall").at("ideal_ttft_speedup") == 1);
  CHECK(dense.at("overall").at("ttft_speedup") == 1);
  CHECK(dense.at("overall").at("timed_items") == 2);
  CHECK(dense.at("items").size() == 8);
  CHECK(dense.at("items")[0].at("id") == "tiny_code/c0");
  CHECK(dense.at("bad_lines").empty());
  CHECK(dense.at("categories").contains("code completion"));

  const Json all = report({"--method", "lazy", "--schedule", "2:1,4:1"});
  CHECK(without_times(all.at("items")) == without_times(dense.at("items")));

  const Json lazy = report({"--schedule", "2:0.5", "--score", "mean:4", "--protect-first", "2"});
  CHECK(lazy.at("settings").at("method") == "lazy");
  CHECK(lazy.at("settings").at("schedule") == "2:0.5");
  CHECK(lazy.at("settings").at("score") == "mean:4");
  CHECK(lazy.at("overall").at("ideal_ttft_speedup") > 1.3);
  CHECK(lazy.at("overall").at("computed_percent") < 100);
  CHECK(lazy.at("overall").at("ttft_speedup") > 0);

  const Json once = report({"--method", "static", "--schedule", "2:0.5"});
  CHECK(once.at("overall").at("ideal_ttft_speedup") == lazy.at("overall").at("ideal_ttft_speedup"));
  CHECK(once.at("overall").at("computed_percent") < 70);

  const Json drop = report({"--method", "random-drop", "--keep", "0.5", "--seeds", "2"});
  CHECK(drop.at("items")[0].at("runs").size() == 2);
  CHECK(drop.at("overall").at("score_by_run").size() == 2);
  CHECK(drop.at("overall").at("ideal_ttft_speedup") > 1.9);

  const Json compress = report({"--method", "compress", "--keep", "0.5"});
  CHECK(compress.at("overall").at("ideal_ttft_speedup") < 1);
  CHECK(compress.at("overall").at("computed_percent").get<double>() == doctest::Approx(50).epsilon(0.01));
  const Json named =
      report({"--method", "compress", "--keep", "0.5", "--compressor", dense.at("settings").at("model")});
  CHECK(without_times(named.at("items")) == without_times(compress.at("items")));
  const test::TemporaryFolder folder;
  const Json other = report({"--method", "compress", "--keep", "0.5", "--compressor", test::ToyModel(folder, 2).model});
  CHECK(without_times(other.at("items")) != without_times(compress.at("items")));
}

TEST_CASE("of an option that is given again, the last value counts") {
  const EvaluateProgram program;
  const Json report = program.report({"--limit", "2", "--method", "lazy", "--limit", "1", "--method", "dense"});
  CHECK(report.at("overall").at("items") == 2);  // of two data sets
  CHECK(report.at("settings").at("method") == "dense");
}

TEST_CASE("the table goes to the standard output") {
  const EvaluateProgram program;
  const auto result = program.run({"--method", "dense", "--speed-items", "0"});
  CHECK(result.status == 0);
  CHECK(result.err.empty());  // no bar where there is no terminal
  for (const char* part : {"TTFT", "tiny_code", "multi-document QA", "overall"}) {
    CHECK(result.out.find(part) != std::string::npos);
  }
}

TEST_CASE("bad lines are reported, counted, and do not stop the run; nothing good at all does") {
  const EvaluateProgram program;
  const std::string data = program.write(
      "tiny_code.jsonl",
      "{bad\n" + EvaluateProgram::line("a", 50).dump() + "\n{}\n" + Json{{"prompt", "p"}, {"answers", "a"}}.dump() +
          "\n" + Json{{"_id", "long"}, {"prompt", "p"}, {"answers", "a"}, {"max_tokens", 600}}.dump() + "\n");
  const auto result = program.run({"--data", data, "--json", program.path("report.json")});
  CAPTURE(result.err);
  CHECK(result.status == 0);
  for (const char* part : {"tiny_code.jsonl:1: not valid JSON", "tiny_code.jsonl:3: ", "tiny_code.jsonl:4: no length",
                           "tiny_code.jsonl:5: an answer of 600 tokens leaves no room"}) {
    CHECK(result.err.find(part) != std::string::npos);
  }
  CHECK(std::ranges::count(result.err, '\n') == 4);
  CHECK(result.out.ends_with("4 bad lines\n"));
  const Json report = Json::parse(test::read(program.path("report.json")));
  CHECK(report.at("items").size() == 1);
  REQUIRE(report.at("bad_lines").size() == 4);
  CHECK(report.at("bad_lines")[3].at("place") == data + ":5");

  program.write("tiny_code.jsonl", "{bad\n" + EvaluateProgram::line("a", 50).dump() + "\n");
  CHECK(program.run({"--data", data}).out.ends_with("\n1 bad line\n"));
  program.write("tiny_code.jsonl", "{bad\n");
  check_fails(program.run({"--data", data}), 1, {"tiny_code.jsonl:1", "no item that can be evaluated"});
  program.write("tiny_code.jsonl", Json{{"prompt", "p"}, {"answers", "a"}, {"max_tokens", 600}}.dump());
  check_fails(program.run({"--data", data}), 1, {"tiny_code.jsonl:1", "no item could be evaluated"});
  check_fails(program.run({"--data", data, "--json", program.path("none.json")}), 1, {"no item could be evaluated"});
  CHECK_FALSE(std::filesystem::exists(program.path("none.json.partial.jsonl")));  // it would refuse another --context
}

TEST_CASE("an interrupted evaluation goes on where it stopped and ends the same") {
  const EvaluateProgram program;
  const std::vector<std::string> arguments = {"--schedule", "2:0.5", "--speed-items", "1", "--repeats", "1"};
  const Json whole = program.report(arguments);

  // Killed after two of eight items, in the middle of writing the third.
  const std::string kept = program.path("kept.jsonl");
  auto with_kept = arguments;
  with_kept.insert(with_kept.end(), {"--resume", kept});
  const auto uninterrupted = program.run(with_kept);
  REQUIRE_MESSAGE(uninterrupted.status == 0, uninterrupted.err);
  std::istringstream lines(test::read(kept));
  std::string header, first, second;
  std::getline(lines, header);
  std::getline(lines, first);
  std::getline(lines, second);
  // A prediction that no run gives shows that finished items are not run again.
  Json marked = Json::parse(first);
  marked["runs"][0]["prediction"] = "marked";
  program.write("report.json.partial.jsonl", header + "\n" + marked.dump() + "\n" + second + "\n{\"id\": \"torn");
  Json resumed = program.report(arguments);
  CHECK(resumed.at("items").size() == 8);
  CHECK(resumed.at("items")[0].at("runs")[0].at("prediction") == "marked");
  resumed["items"][0]["runs"][0]["prediction"] = whole.at("items")[0].at("runs")[0].at("prediction");
  CHECK(without_times(resumed.at("items")) == without_times(whole.at("items")));

  // More of the same data is no other setting; another schedule is.
  with_kept.insert(with_kept.end(), {"--limit", "1"});
  const auto less = program.run(with_kept);
  CHECK_MESSAGE(less.status == 0, less.err);
  CHECK(std::ranges::count(test::read(kept), '\n') == 9);
  with_kept[1] = "2:0.6";
  check_fails(program.run(with_kept), 1, {"kept.jsonl", "other settings", R"(schedule was "2:0.5", is "2:0.6")"});
}

TEST_CASE("the partial results stay when the end cannot be written") {
  const EvaluateProgram program;
  const std::string folder = program.path("folder");
  std::filesystem::create_directory(folder);
  check_fails(program.run({"--json", folder}), 1, {folder, "cannot be written"});
  CHECK(!std::filesystem::exists(folder + ".partial.jsonl"));  // found before any work
}

TEST_CASE("nothing is written where the next run would read it as data") {
  const EvaluateProgram program;
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& part) {
    check_fails(program.run(arguments), 1, {part, "would read it as data"});
    CHECK(std::distance(std::filesystem::directory_iterator(program.path("data")), {}) == 2);
  };
  refused({"--json", program.path("data/out.json")}, "out.json.partial.jsonl: the log of --json lies in the folder");
  refused({"--json", program.path("data/out.jsonl"), "--resume", program.path("kept.jsonl")},
          "out.jsonl: --json lies in the folder");
  refused({"--resume", program.path("data/kept.jsonl")}, "kept.jsonl: --resume lies in the folder");
}

TEST_CASE("mistakes in the options") {
  const EvaluateProgram program;
  check_fails(EvaluateProgram::run_plain({"--data", "x"}), 2, {"--model is required"});
  check_fails(EvaluateProgram::run_plain({"--model", "x"}), 2, {"--data is required"});
  check_fails(program.run({"--method", "magic"}), 2, {"--method", "magic"});
  check_fails(program.run({"--dtype", "f16"}), 1, {"--dtype f16 is not one of f32 and bf16, the types on the CPU"});
#ifndef LLAMA_HAS_CUDA
  check_fails(program.run({"--device", "cuda"}), 1, {"--device cuda: this build has no CUDA"});
#endif
  check_fails(program.run({"--limit", "0"}), 2, {"--limit: 0", "at least 1"});
  for (const char* option : {"--max-tokens", "--longest-answer"}) {
    check_fails(program.run({option, "1048577"}), 2, {fmt::format("{}: 1048577", option), "from 1 to 1048576"});
  }
  check_fails(program.run({"--seeds", "0"}), 2, {"--seeds: 0"});
  check_fails(program.run({"--seed", "-1"}), 2, {"--seed: -1"});
  check_fails(program.run({"--speed-items", "-1"}), 2, {"--speed-items: -1"});
  check_fails(program.run({"--keep", "0", "--method", "random-drop"}), 1, {"keep 0", "(0, 1]"});
  check_fails(program.run({"--context", "513"}), 1, {"--context 513", "1 to 512"});
  check_fails(program.run({"--schedule", "6:0.5"}), 1, {"layer 6", "1 to 5"});
  check_fails(program.run({"--data", program.path("none.jsonl")}), 1, {"none.jsonl", "No such file"});
  check_fails(program.run({"--prompts", program.path("none.json")}), 1, {"none.json", "No such file"});
  check_fails(program.run({"--method", "compress", "--compressor", program.path("none.bin")}), 1, {"none.bin"});
  const std::string fixture = lazyllm::test::source_folder() / "tests/reference/fixtures/lazyllm/models/mha_4_layers";
  const test::TemporaryFolder folder;
  check_fails(program.run({"--method", "compress", "--compressor", test::ToyModel(folder, 1, 128).model}), 1,
              {"context of 128", "is 512"});
  check_fails(program.run({"--method", "compress", "--compressor", fixture}), 1, {"97", "300", "same tokenizer"});
  CHECK(program.run({"--help"}).out.find("--compressor PATH") != std::string::npos);
}

TEST_CASE("stories260K: a story's continuation is scored") {
  const auto folder = test::real_input("stories260K");
  if (!std::filesystem::exists(folder)) {
    MESSAGE("skipped: the model stories260K is absent");
    return;
  }
  // The model's own greedy text is the answer.
  const std::string story = test::read(folder / "expected.txt").substr(16);
  const test::TemporaryFolder files;
  const std::string data =
      files.write("tiny_summarization.jsonl",
                  Json{{"prompt", "Once upon a time"}, {"answers", {story}}, {"max_tokens", 240}}.dump());
  const auto run = [&](std::vector<std::string> arguments) {
    const std::string report = files.path() / "report.json";
    for (const std::string& argument :
         {std::string("--model"), std::string(folder / "stories260K.bin"), std::string("--tokenizer"),
          std::string(folder / "tok512.bin"), std::string("--data"), data, std::string("--json"), report,
          std::string("--threads"), std::string("1"), std::string("--speed-items"), std::string("0")}) {
      arguments.push_back(argument);
    }
    const auto result = EvaluateProgram::run_plain(arguments);
    CAPTURE(result.err);
    REQUIRE(result.status == 0);
    return Json::parse(test::read(report)).at("items").at(0).at("runs").at(0);
  };
  const Json dense = run({"--method", "dense"});
  CHECK(story.starts_with(dense.at("prediction").get<std::string>()));
  CHECK(dense.at("tokens") == 240);
  CHECK(dense.at("score") > 0.9);
  CHECK(run({"--schedule", "1:1"}).at("prediction") == dense.at("prediction"));
  CHECK(run({"--schedule", "1:0.3"}).at("score") < dense.at("score"));
}
