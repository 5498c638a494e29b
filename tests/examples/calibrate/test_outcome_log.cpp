#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "examples/calibrate/outcome_log.hpp"
#include "tests/examples/llama/files.hpp"

using namespace llama;
using Json = nlohmann::json;

namespace {

const nlohmann::ordered_json settings = {{"model", "m"}, {"tokens", 8}};
const lazyllm::Preset cut{
    .schedule = {{3, 0.1}}, .score = lazyllm::AttentionScore::parse("mean:8"), .protect_first = 4};

std::string resume_error(const test::TemporaryFolder& folder, const std::string& content) {
  const auto path = folder.write("log", content);
  try {
    OutcomeLog(path, settings, true);
  } catch (const std::exception& error) {
    CHECK(test::read(path) == content);
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("log: what was written is found again, digit for digit, and only for its preset and prompt") {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "log";
  {
    OutcomeLog log(path, settings, false);
    CHECK(log.find(cut, 0) == nullptr);
    log.add(cut, 0, {8, 2, 0.1});
    log.add(cut, 1, {7, 7, 1.0 / 3});
    log.add({}, 0, {8, 8, 0});
    REQUIRE(log.find(cut, 1) != nullptr);
  }
  OutcomeLog log(path, settings, true);
  REQUIRE(log.find(cut, 0) != nullptr);
  CHECK(log.find(cut, 0)->equal == 2);
  REQUIRE(log.find(cut, 1) != nullptr);
  CHECK(log.find(cut, 1)->positions == 7);
  CHECK(log.find(cut, 1)->equal == 7);
  CHECK(log.find(cut, 1)->kl == 1.0 / 3);
  CHECK(log.find({}, 0) != nullptr);
  CHECK(log.find({}, 1) == nullptr);
  CHECK(log.find(cut, 2) == nullptr);

  OutcomeLog anew(path, settings, false);
  CHECK(anew.find(cut, 0) == nullptr);
}

TEST_CASE("log: damaged outcomes are refused and the file stays as it was") {
  const test::TemporaryFolder folder;
  const std::string head = Json{{"settings", settings}}.dump() + "\n";
  const std::string line = R"({"preset":{"schedule":"3:0.1"},"prompt":0,"positions":8,"equal":1,"kl":0.5})";
  const auto replaced = [&](const std::string& part, const std::string& by) {
    std::string text = line;
    return head + text.replace(text.find(part), part.size(), by) + "\n";
  };
  CHECK(resume_error(folder, head + line + "\n") == "nothing was thrown");
  CHECK(resume_error(folder, head + "\n").find("log:2") != std::string::npos);
  CHECK(resume_error(folder, head + "[]\n").find("log:2") != std::string::npos);
  CHECK(resume_error(folder, replaced("3:0.1", "3:1.1")).find("keep 1.1") != std::string::npos);
  CHECK(resume_error(folder, replaced("\"prompt\":0", "\"prompt\":\"0\"")).find("log:2") != std::string::npos);
  CHECK(resume_error(folder, replaced("\"kl\":0.5", "\"kl\":null")).find("log:2") != std::string::npos);
  CHECK(resume_error(folder, replaced("\"equal\":1", "\"equal\":9")).find("9 equal tokens of 8") != std::string::npos);
  CHECK(resume_error(folder, replaced("\"equal\":1", "\"equal\":-1")).find("-1 equal tokens") != std::string::npos);
}
