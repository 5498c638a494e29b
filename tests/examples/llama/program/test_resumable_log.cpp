#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "examples/llama/program/resumable_log.hpp"
#include "tests/examples/llama/checkpoint/support.hpp"
#include "tests/examples/llama/files.hpp"

using namespace llama;
using test::TemporaryFolder;
using testing::check_rejected;

namespace {

const nlohmann::ordered_json settings = {{"method", "lazy"}, {"keep", 0.4}, {"seeds", 5}};

/// A log of numbers.
struct Log {
  explicit Log(const std::filesystem::path& path, const nlohmann::ordered_json& with = settings, bool resume = true)
      : log(path, with, resume, [this](const nlohmann::json& line, const std::string& place) {
          numbers.push_back(line.at("number"));
          places.push_back(place);
        }) {}

  std::vector<int> numbers;  // before `log`, which fills them
  std::vector<std::string> places;
  ResumableLog log;
};

}  // namespace

TEST_CASE("log: a start reads what earlier ones wrote, unless it is to start anew") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "log.jsonl";
  Log(path).log.append({{"number", 1}});
  Log(path).log.append({{"number", 2}});
  const Log third(path);
  CHECK(third.numbers == std::vector{1, 2});
  CHECK(third.places == std::vector{path.string() + ":2", path.string() + ":3"});
  CHECK(Log(path, {{"method", "other"}}, false).numbers.empty());
  CHECK(Log(path, {{"method", "other"}}).numbers.empty());
}

TEST_CASE("log: cut off anywhere, it goes on after the last whole line") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "log.jsonl";
  for (const int number : {1, 2}) Log(path).log.append({{"number", number}});
  const std::string whole = test::read(path);
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    folder.write("log.jsonl", whole.substr(0, size));
    Log log(path);
    for (int number = static_cast<int>(log.numbers.size()) + 1; number <= 2; ++number) {
      log.log.append({{"number", number}});
    }
    REQUIRE(test::read(path) == whole);
  }
}

TEST_CASE("log: other settings are refused by name and the file stays as it was") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "log.jsonl";
  Log(path).log.append({{"number", 1}});
  const std::string before = test::read(path) + "{\"torn";
  folder.write("log.jsonl", before);
  check_rejected<std::invalid_argument>(
      [&] {
        Log(path, {{"method", "lazy"}, {"keep", 0.5}, {"threads", 2}});
      },
      {"log.jsonl", "keep was 0.4, is 0.5", "seeds was 5, is absent", "threads was absent, is 2"});
  CHECK(test::read(path) == before);
}

TEST_CASE("log: settings that are not UTF-8 are the same ones again") {
  const TemporaryFolder folder;
  const nlohmann::ordered_json path_in_latin1 = {{"model", "m\xe9moire"}};
  Log(folder.path() / "log.jsonl", path_in_latin1).log.append({{"number", 1}});
  CHECK(Log(folder.path() / "log.jsonl", path_in_latin1).numbers.size() == 1);
}

TEST_CASE("log: files that hold something else are refused and stay as they were") {
  const TemporaryFolder folder;
  const std::string header = R"({"settings":)" + settings.dump() + "}\n";
  for (const std::string& text :
       {std::string("a file of mine"), std::string("a file of mine\n"), std::string("{\"mine\": 1}"),
        std::string("{\"mine\": 1}\n"), header + "{}\n", header + "{\"number\": 3\n", header + "\n", header + "[]\n"}) {
    const auto path = folder.write("other.jsonl", text);
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(Log{path}, doctest::Contains("other.jsonl"), std::exception);
    CHECK(test::read(path) == text);
  }
  check_rejected<std::invalid_argument>([&] { Log{folder.path()}; }, {"not a regular file"});
  check_rejected<std::invalid_argument>([&] { Log(folder.path(), settings, false); }, {"not a regular file"});
  check_rejected<std::invalid_argument>([&] { Log{folder.path() / "none/file"}; }, {"none/file", "cannot be written"});
}
