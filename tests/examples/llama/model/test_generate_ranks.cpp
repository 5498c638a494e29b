/// lazyllm-generate and lazyllm-evaluate as several processes of MPI.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/examples/llama/model/generate_program.hpp"
#include "tests/support/source_folder.hpp"

using namespace llama::test;

namespace {

/// `mpirun` with `count` processes of `command`.
ProcessResult run_ranks(int count, const std::vector<std::string>& command, const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"--oversubscribe", "--bind-to", "none", "-n", std::to_string(count)};
  all.insert(all.end(), command.begin(), command.end());
  all.insert(all.end(), arguments.begin(), arguments.end());
  all.insert(all.end(), {"--parallel", "mpi", "--threads", "1"});
  return run_process(LAZYLLM_MPIEXEC, all);
}

/// lazyllm-generate on rank 0 and, between `before` and `after`, on rank 1. The shell decides: the mpirun of OpenMPI
/// 5.0.7 crashes where it is given two programs.
std::vector<std::string> other_on_rank_1(const std::string& before, const std::string& after) {
  std::string script = "if [ \"$OMPI_COMM_WORLD_RANK\" = 0 ]; then exec '" LAZYLLM_GENERATE "' \"$@\"; fi; exec ";
  script.append(before).append(" '" LAZYLLM_GENERATE "' \"$@\" ").append(after);
  return {"sh", "-c", script, "sh"};
}

std::vector<std::string> with(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

const std::string tiny = lazyllm::test::source_folder() / "examples/models/tiny";

}  // namespace

TEST_CASE("generate with ranks: text and kept sets are those of one process") {
  const GenerateProgram program;
  const std::string prompt = lazyllm::test::source_folder() / "examples/prompts/lighthouse.txt";
  const std::vector<std::string> arguments = {
      "--model", tiny, "--prompt-file", prompt, "--schedule", "3:0.5,6:0.5,9:0.5", "--max-tokens", "8"};
  for (const std::string dtype : {"f32", "bf16"}) {
    CAPTURE(dtype);
    const auto alone = program.run(with(arguments, {"--dtype", dtype, "--trace", program.path("one")}));
    REQUIRE(alone.status == 0);
    for (const int count : {2, 4}) {
      CAPTURE(count);
      const auto ranks =
          run_ranks(count, {LAZYLLM_GENERATE}, with(arguments, {"--dtype", dtype, "--trace", program.path("ranks")}));
      CHECK(ranks.status == 0);
      CHECK(ranks.out == alone.out);
      if (dtype == "f32") CHECK(read(program.path("ranks")) == read(program.path("one")));
    }
  }
}

TEST_CASE("generate with ranks: more ranks than query heads are refused with the numbers") {
  const auto result = run_ranks(5, {LAZYLLM_GENERATE}, {"--model", tiny, "--prompt", "a"});
  CHECK(result.status != 0);
  CHECK(result.err.find("5 ranks are out of range 1 to 4 for 4 query heads on 2 key heads") != std::string::npos);
}

TEST_CASE("generate with ranks: a process that is killed ends all of them within seconds") {
  const std::vector<std::string> long_run = {"--model",    tiny,    "--prompt",     "a b c",
                                             "--schedule", "dense", "--max-tokens", "4000"};
  const auto start = std::chrono::steady_clock::now();
  auto result = run_ranks(2, other_on_rank_1("timeout -s KILL 0.7", ""), long_run);
  CHECK(result.status != 0);
  std::ranges::replace(result.err, '\n', ' ');  // OpenMPI 5 breaks the sentence
  CHECK(result.err.find("exited on signal 9 (Killed)") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

TEST_CASE("generate with ranks: what goes wrong on one process alone is said, and ends all") {
  const auto result =
      run_ranks(2, other_on_rank_1("", "--context 5"), {"--model", tiny, "--prompt", "a b c", "--max-tokens", "4"});
  CHECK(result.status != 0);
  CHECK(result.err.find("rank 1 of 2: --context 5 is out of range: at least 6") != std::string::npos);
}

TEST_CASE("evaluate with ranks: results are those of one process") {
  const GenerateProgram program;
  const std::string data = program.write(
      "data.jsonl",
      R"({"prompt": "The key is 7. The key is", "answers": ["7"], "dataset": "hotpotqa", "max_tokens": 6})"
      "\n"
      R"({"prompt": "A lamp burns. A lamp", "answers": ["burns"], "dataset": "trec", "max_tokens": 6})"
      "\n");
  const auto answers = [&](const std::string& json) {
    const std::string text = read(json);
    std::vector<std::string> found;
    for (std::size_t at = 0; (at = text.find("\"prediction\"", at)) != std::string::npos; ++at) {
      found.push_back(text.substr(at, text.find('\n', at) - at));
    }
    return found;
  };
  const std::vector<std::string> arguments = {"--model",    tiny,    "--data",        data,
                                              "--schedule", "3:0.5", "--speed-items", "1"};
  const auto alone = run_process(LAZYLLM_EVALUATE, with(arguments, {"--json", program.path("one.json")}));
  REQUIRE(alone.status == 0);
  const auto ranks = run_ranks(2, {LAZYLLM_EVALUATE}, with(arguments, {"--json", program.path("two.json")}));
  CHECK(ranks.status == 0);
  CHECK(!answers(program.path("one.json")).empty());
  CHECK(answers(program.path("two.json")) == answers(program.path("one.json")));
  const auto refused = run_ranks(2, {LAZYLLM_EVALUATE}, with(arguments, {"--resume", program.path("log")}));
  CHECK(refused.status != 0);
  CHECK(refused.err.find("--resume does not go with --parallel") != std::string::npos);
}
