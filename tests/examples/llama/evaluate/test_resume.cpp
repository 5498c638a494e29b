#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "examples/llama/checkpoint/error.hpp"
#include "examples/llama/evaluate/resume.hpp"
#include "lazyllm/error.hpp"
#include "tests/examples/llama/checkpoint/support.hpp"
#include "tests/examples/llama/tokenizer/support.hpp"

using namespace lazyllm;
using namespace lazyllm::llama;
using test::TemporaryFolder;
using testing::check_rejected;

namespace {

const nlohmann::ordered_json settings = {{"method", "lazy"}, {"keep", 0.4}, {"seeds", 5}};

ItemResult result(const std::string& id) {
  return {id,
          "lcc",
          0xfedcba9876543210,
          77,
          1.0 / 3,
          {{"a \"prediction\"\n\u00e9", 0.1, 3, 4.5, 6.7, 8e12, 99.9, 101.5, 80.25}},
          {{1, 2}, {3, 4}, {5, 6}, {7, 8}}};
}

Item item(const std::string& id) {
  Item item;
  item.id = id;
  item.place = "lcc.jsonl:5";
  item.fingerprint = result(id).fingerprint;
  return item;
}

}  // namespace

TEST_CASE("results come back as they were, also after another start") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "partial.jsonl";
  {
    ResumeFile file(path, settings);
    CHECK(file.size() == 0);
    file.append(result("lcc/1"));
  }
  {
    ResumeFile file(path, settings);
    CHECK(file.size() == 1);
    file.append(result("lcc/2"));
  }
  const ResumeFile file(path, settings);
  CHECK(file.size() == 2);
  for (const char* id : {"lcc/1", "lcc/2"}) {
    REQUIRE(file.find(item(id)) != nullptr);
    CHECK(nlohmann::json(*file.find(item(id))) == nlohmann::json(result(id)));
  }
  CHECK(file.find(item("lcc/3")) == nullptr);
}

TEST_CASE("a line that was cut off is dropped, wherever it ends, and the next one follows cleanly") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "partial.jsonl";
  {
    ResumeFile file(path, settings);
    file.append(result("lcc/1"));
    file.append(result("lcc/2"));
  }
  const std::string whole = test::read(path);
  const std::size_t header = whole.find('\n') + 1;
  const std::size_t second = whole.find('\n', header) + 1;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    folder.write("partial.jsonl", whole.substr(0, size));
    const std::size_t expected = size < second ? 0 : 1;
    {
      ResumeFile file(path, settings);
      REQUIRE(file.size() == expected);
      if (expected == 0) file.append(result("lcc/1"));
      file.append(result("lcc/2"));
    }
    REQUIRE(test::read(path) == whole);
  }
}

TEST_CASE("other settings are refused by name and the file stays as it was") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "partial.jsonl";
  ResumeFile(path, settings).append(result("lcc/1"));
  const std::string before = test::read(path) + "{\"torn";
  folder.write("partial.jsonl", before);
  const nlohmann::ordered_json other = {{"method", "lazy"}, {"keep", 0.5}, {"threads", 2}};
  check_rejected<invalid_argument>(
      [&] { ResumeFile(path, other); },
      {"partial.jsonl", "keep was 0.4, is 0.5", "seeds was 5, is absent", "threads was absent, is 2"});
  CHECK(test::read(path) == before);
}

TEST_CASE("an item that has changed is refused") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "partial.jsonl";
  ResumeFile(path, settings).append(result("lcc/1"));
  Item changed = item("lcc/1");
  ++changed.fingerprint;
  const ResumeFile file(path, settings);
  check_rejected<invalid_argument>([&] { file.find(changed); }, {"lcc.jsonl:5", "lcc/1", "has changed"});
}

TEST_CASE("files that hold something else are refused and stay as they were") {
  const TemporaryFolder folder;
  const std::string header = R"({"settings":)" + settings.dump() + "}\n";
  for (const std::string& text :
       {std::string("a file of mine"), std::string("{\"mine\": 1}"), std::string("{\"mine\": 1}\n"), header + "{}\n",
        header + "{\"id\": 3\n", header + "[]\n" + nlohmann::json(result("a")).dump() + "\n"}) {
    const auto path = folder.write("other.jsonl", text);
    CHECK_THROWS_WITH_AS(ResumeFile(path, settings), doctest::Contains("other.jsonl"), std::exception);
    CHECK(test::read(path) == text);
  }
  check_rejected<invalid_argument>([&] { ResumeFile(folder.path(), settings); }, {"not a regular file"});
  check_rejected<invalid_argument>([&] { ResumeFile(folder.path() / "none/file", settings); },
                                   {"none/file", "cannot be written"});
}
