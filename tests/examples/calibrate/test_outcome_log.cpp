#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "examples/calibrate/outcome_log.hpp"
#include "examples/llama/files/file_error.hpp"
#include "tests/examples/llama/files.hpp"

using namespace llama;
using Json = nlohmann::json;

namespace {

const nlohmann::ordered_json settings = {{"model", "m"}, {"tokens", 8}};
const lazyllm::Preset cut{.schedule = {{3, 0.1}}, .score = lazyllm::parse_score("mean:8"), .protect_first = 4};

std::string resume_error(const test::TemporaryFolder& folder, const std::string& content) {
  const auto path = folder.write("log", content);
  try {
    OutcomeLog(path, true).start(settings, 3, 12);
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
    OutcomeLog log(path, false);
    log.start(settings, 3, 12);
    log.compare_with(18446744073709551615u);
    CHECK(log.find(cut, 0) == nullptr);
    log.add(cut, 0, {8, 2, 0.1});
    log.add(cut, 1, {7, 7, 1.0 / 3});
    log.add({}, 0, {8, 8, 0});
    REQUIRE(log.find(cut, 1) != nullptr);
  }
  OutcomeLog log(path, true);
  log.start(settings, 3, 12);
  log.compare_with(18446744073709551615u);
  const std::string before = test::read(path);
  CHECK_THROWS_WITH_AS(log.compare_with(1), doctest::Contains("log: was written with other dense answers"), file_error);
  CHECK(test::read(path) == before);
  REQUIRE(log.find(cut, 0) != nullptr);
  CHECK(log.find(cut, 0)->equal == 2);
  REQUIRE(log.find(cut, 1) != nullptr);
  CHECK(log.find(cut, 1)->positions == 7);
  CHECK(log.find(cut, 1)->equal == 7);
  CHECK(log.find(cut, 1)->kl == 1.0 / 3);
  CHECK(log.find({}, 0) != nullptr);
  CHECK(log.find({}, 1) == nullptr);
  CHECK(log.find(cut, 2) == nullptr);
}

TEST_CASE("log: answers without an outcome leave no file, which would refuse the next search") {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "log";
  {
    OutcomeLog log(path, false);
    log.start(settings, 3, 12);
    log.compare_with(1);
  }
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("log: damaged outcomes are refused and the file stays as it was") {
  const test::TemporaryFolder folder;
  const std::string first = Json{{"settings", settings}}.dump() + "\n";
  const std::string head = first + R"({"answers":7})" + "\n";
  const std::string line = R"({"preset":{"schedule":"3:0.1"},"prompt":0,"positions":8,"equal":1,"kl":0.5})";
  const auto replaced = [&](const std::string& part, const std::string& by) {
    std::string text = line;
    return head + text.replace(text.find(part), part.size(), by) + "\n";
  };
  const auto refused = [&](const std::string& content, const std::string& reason) {
    const std::string error = resume_error(folder, content);
    CAPTURE(error);
    CHECK(error.find(content.starts_with(head) ? "log:3" : "log:2") != std::string::npos);
    CHECK(error.find(reason) != std::string::npos);
  };
  CHECK(resume_error(folder, head + line + "\n") == "nothing was thrown");
  refused(first + line + "\n", "an outcome stands before the answers");
  refused(first + R"({"answers":-7})" + "\n" + line + "\n", "\"answers\"");
  refused(head + R"({"answers":7})" + "\n", "stands once, in a line of its own");
  refused(head + "\n", "not valid JSON");
  refused(head + "[]\n", "\"positions\" is missing");
  refused(replaced("\"preset\"", "\"perset\""), "field \"preset\" is missing");
  refused(replaced("3:0.1", "3:1.1"), "keep 1.1");
  refused(replaced("{\"schedule\":\"3:0.1\"}", "null"), "preset");
  refused(replaced("\"3:0.1\"", "\"12:0.1\""), "layer 12 is out of range 1 to 11");
  refused(replaced("\"prompt\":0", "\"prompt\":\"0\""), "\"prompt\"");
  refused(replaced("\"prompt\":0", "\"prompt\":3"), "\"prompt\" is 3, expected an integer from 0 to 2");
  refused(replaced("\"positions\":8", "\"positions\":1e308"), "\"positions\"");
  refused(replaced("\"kl\":0.5", "\"kl\":null"), "\"kl\" is null");
  refused(replaced("\"kl\":0.5", "\"kl\":1e308"), "\"kl\" is 1e+308");
  refused(replaced("\"equal\":1", "\"equal\":9"), "\"equal\" is 9, expected an integer from 0 to 8");
  refused(replaced("\"equal\":1", "\"equal\":-1"), "\"equal\" is -1");
}
