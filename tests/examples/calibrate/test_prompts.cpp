#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "examples/calibrate/prompts.hpp"
#include "examples/llama/files/file_error.hpp"
#include "tests/examples/llama/failing_large_allocations.hpp"
#include "tests/examples/llama/files.hpp"

using namespace llama;
using Texts = std::vector<std::string>;

namespace {

Texts texts(const std::filesystem::path& path) {
  Texts result;
  for (const Prompt& prompt : read_prompts(path)) result.push_back(prompt.text);
  return result;
}

}  // namespace

TEST_CASE("prompts: lines, texts, and folders of both in turn") {
  const test::TemporaryFolder folder;
  const auto lines =
      folder.write("b.jsonl", "{\"prompt\": \"b1\", \"answers\": [\"x\"]}\n \r\n{\"prompt\": \"b\\n2\"}");
  CHECK(texts(lines) == Texts{"b1", "b\n2"});
  const auto text = folder.write("c.txt", "c\n1\n");
  CHECK(texts(text) == Texts{"c\n1\n"});
  folder.write("a.jsonl", "{\"prompt\": \"a1\"}\n{\"prompt\": \"a2\"}\n{\"prompt\": \"a3\"}\n");
  folder.write("d.md", "not a prompt");
  CHECK(texts(folder.path()) == Texts{"a1", "b1", "c\n1\n", "a2", "b\n2", "a3"});
}

TEST_CASE("prompts: the category is the line's, or its data set, or none; so is the answer's length") {
  const test::TemporaryFolder folder;
  const auto prompts =
      read_prompts(folder.write("a.jsonl",
                                "{\"prompt\": \"1\", \"dataset\": \"d\", \"category\": \"c\", \"max_tokens\": 7}\n"
                                "{\"prompt\": \"2\", \"dataset\": \"d\", \"category\": null}\n"
                                "{\"prompt\": \"3\"}\n"));
  REQUIRE(prompts.size() == 3);
  CHECK(prompts[0].category == "c");
  CHECK(prompts[1].category == "d");
  CHECK(prompts[2].category.empty());
  CHECK(prompts[0].max_tokens == 7);
  CHECK_FALSE(prompts[2].max_tokens.has_value());
}

TEST_CASE("prompts: what cannot be used is refused by file and line") {
  const test::TemporaryFolder folder;
  const auto error = [&](const std::string& content, const std::string& name = "p.jsonl") -> std::string {
    try {
      read_prompts(folder.write(name, content));
    } catch (const std::exception& caught) {
      return caught.what();
    }
    return "nothing was thrown";
  };
  CHECK(error("").find("holds no prompt") != std::string::npos);
  CHECK(error("", "p.txt").find("p.txt: the prompt is empty") != std::string::npos);
  CHECK(error("{\"prompt\": \"a\"}\n{\"prompt\": \"\"}\n").find("p.jsonl:2: the prompt is empty") != std::string::npos);
  CHECK(error("{\"prompt\": 3}\n").find("p.jsonl:1: there is no text prompt") != std::string::npos);
  CHECK(error("{\"prompt\": \"a\", \"max_tokens\": 0}\n").find("p.jsonl:1: max_tokens is 0") != std::string::npos);
  CHECK(error("[\"prompt\"]\n").find("p.jsonl:1: there is no text prompt") != std::string::npos);
  CHECK(error("{\"prompt\": \"a\"\n").find("p.jsonl:1: not valid JSON") != std::string::npos);
  CHECK_THROWS_AS(read_prompts(folder.path() / "none.txt"), file_error);
  CHECK_THROWS_AS(read_prompts(folder.path() / "none.jsonl"), file_error);
  CHECK_THROWS_AS(read_prompts(test::TemporaryFolder().path()), std::invalid_argument);
}

TEST_CASE("prompts: none is lost where memory runs out") {
  const test::TemporaryFolder folder;
  const std::string line = R"({"prompt": ")" + std::string(100'000, 'p') + "\"}\n";
  const auto path = folder.write("p.jsonl", line + line);
  test::check_nothing_is_lost(50'000, [&] {
    const auto prompts = read_prompts(path);
    CHECK(prompts.size() == 2);
  });
}

TEST_CASE("prompts: of each category every second one is held out, and not the same one of all") {
  const auto held = [](const std::vector<std::string>& categories) {
    std::vector<Prompt> prompts;
    for (const std::string& category : categories) prompts.push_back({"text", category, {}});
    return held_out(prompts);
  };
  CHECK(held({"", "", "", ""}) == std::vector<bool>{false, true, false, true});
  CHECK(held({"a", "b", "c", "a", "b", "c"}) == std::vector<bool>{false, true, false, true, false, true});
  CHECK(held({"a", "b", "a", "b"}) == std::vector<bool>{false, true, true, false});
}
