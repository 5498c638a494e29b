#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "examples/llama/files/file_error.hpp"
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
      : log(path, resume) {
    log.start(with, [this](const nlohmann::json& line) { numbers.push_back(line.at("number")); });
  }

  ResumableLog log;
  std::vector<int> numbers;
};

}  // namespace

TEST_CASE("log: a start reads what earlier ones wrote") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "log.jsonl";
  Log(path).log.append({{"number", 1}});
  Log(path).log.append({{"number", 2}});
  CHECK(Log(path).numbers == std::vector{1, 2});
}

TEST_CASE("log: work that is there is not thrown away by a start that does not go on with it") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "log.jsonl";
  Log(path, settings, false).log.append({{"number", 1}});
  const std::string before = test::read(path);
  check_rejected<file_error>([&] { Log(path, settings, false); }, {"log.jsonl", "holds earlier work", "--resume"});
  CHECK(test::read(path) == before);
  folder.write("mine", "a file of mine");
  check_rejected<file_error>([&] { Log(folder.path() / "mine", settings, false); }, {"mine", "holds earlier work"});
  CHECK(test::read(folder.path() / "mine") == "a file of mine");
  CHECK(Log(folder.write("empty", ""), settings, false).numbers.empty());
}

TEST_CASE("log: one program at a time has it") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "log.jsonl";
  {
    Log first(path);
    first.log.append({{"number", 1}});
    check_rejected<file_error>([&] { Log{path}; }, {path.string(), "in use by another program"});
    first.log.append({{"number", 2}});
  }
  CHECK(Log(path).numbers == std::vector{1, 2});
}

TEST_CASE("log: links are not followed, and a pipe does not block") {
  const TemporaryFolder folder;
  folder.write("precious", "");
  std::filesystem::create_symlink("precious", folder.path() / "link");
  std::filesystem::create_symlink("none", folder.path() / "dangling");
  REQUIRE(::mkfifo((folder.path() / "pipe").c_str(), 0600) == 0);
  for (const char* name : {"link", "dangling"}) {
    check_rejected<file_error>([&] { Log(folder.path() / name); }, {name, "a link"});
  }
  check_rejected<file_error>([&] { Log(folder.path() / "pipe"); }, {"pipe", "not a regular file"});
  CHECK(test::read(folder.path() / "precious").empty());
  CHECK_FALSE(std::filesystem::exists(folder.path() / "none"));
}

TEST_CASE("log: a new file that is not started goes away") {
  const TemporaryFolder folder;
  { const ResumableLog log(folder.path() / "log.jsonl", true); }
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("log: one without work goes away, so that it cannot refuse other settings") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "log.jsonl";
  {
    const Log log(path);
    CHECK(test::read(path).empty());  // of a program that is killed now
  }
  CHECK_FALSE(std::filesystem::exists(path));
  folder.write("log.jsonl", R"({"settings":)" + settings.dump().substr(0, 9));
  Log{path};
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("log: a line that cannot be written leaves those before it") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "log.jsonl";
  Log(path).log.append({{"number", 1}});
  const std::string before = test::read(path);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {  // a limit on the size of files stands for a full disk
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{before.size() + 5, before.size() + 5};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int status = 9;
    try {
      Log(path).log.append({{"number", 2}});
    } catch (const file_error&) {
      status = 7;
    }
    ::_exit(status);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
  CHECK(test::read(path) == before);
}

TEST_CASE("log: cut off anywhere, it goes on after the last whole line") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "log.jsonl";
  for (const int number : {1, 2}) Log(path).log.append({{"number", number}});
  const std::string whole = test::read(path);
  const std::size_t recognized = std::string(R"({"settings":)").size();
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    folder.write("log.jsonl", whole.substr(0, size));
    if (size > 0 && size < recognized) {  // as anything else may begin
      check_rejected<file_error>([&] { Log{path}; }, {"log.jsonl", "was not written by this program"});
      CHECK(test::read(path) == whole.substr(0, size));
      continue;
    }
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
  check_rejected<file_error>(
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
        std::string("{\"mine\": 1}\n"), std::string(R"({"settings":{"theme":"dark"}})"),
        std::string("{\"settings\":\"dark\"}\n"), std::string("{\"settings\":1"), header + "{}\n",
        header + "{\"number\": 3\n", header + "\n", header + "[]\n"}) {
    const auto path = folder.write("other.jsonl", text);
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(Log{path}, doctest::Contains("other.jsonl"), file_error);
    CHECK(test::read(path) == text);
  }
  check_rejected<file_error>([&] { Log{folder.path()}; }, {"not a regular file"});
  check_rejected<file_error>([&] { Log{folder.path() / "none/file"}; }, {"none/file", "cannot be written"});
}

TEST_CASE("log: a line that lacks what is read from it is refused without the words of a library") {
  const TemporaryFolder folder;
  const std::string header = R"({"settings":)" + settings.dump() + "}\n";
  const auto with_zero = folder.write("zero.jsonl", header + R"({"number":3})" + '\0' + R"({"number":4})" + "\n");
  check_rejected<file_error>([&] { Log{with_zero}; }, {"zero.jsonl:2: not valid JSON: a zero byte"});
  for (const char* line : {"{}", "[]", R"({"number": "three"})"}) {
    const auto path = folder.write("log.jsonl", header + line + "\n");
    CAPTURE(line);
    try {
      Log{path};
      FAIL_CHECK("nothing was thrown");
    } catch (const file_error& error) {
      CHECK(std::string(error.what()).starts_with(path.string() + ":2: does not hold what this program writes: "));
      CHECK(std::string(error.what()).find("exception") == std::string::npos);
    }
  }
}

TEST_CASE("log: a failed allocation is not blamed on the line") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "log.jsonl";
  Log(path).log.append({{"number", 1}});
  ResumableLog log(path, true);
  CHECK_THROWS_AS(log.start(settings, [](const nlohmann::json&) { throw std::bad_alloc(); }), std::bad_alloc);
}
