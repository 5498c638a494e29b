#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "bench/evaluate/result_log.hpp"
#include "examples/llama/files/file_error.hpp"
#include "tests/examples/llama/checkpoint/support.hpp"

using namespace llama;
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
    ResultLog file(path, settings, 1);
    CHECK(file.size() == 0);
    file.add(result("lcc/1"));
  }
  {
    ResultLog file(path, settings, 1);
    CHECK(file.size() == 1);
    file.add(result("lcc/2"));
  }
  const ResultLog file(path, settings, 1);
  CHECK(file.size() == 2);
  for (const char* id : {"lcc/1", "lcc/2"}) {
    REQUIRE(file.find(item(id)) != nullptr);
    CHECK(nlohmann::json(*file.find(item(id))) == nlohmann::json(result(id)));
  }
  CHECK(file.find(item("lcc/3")) == nullptr);
}

TEST_CASE("an item that has changed is refused") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "partial.jsonl";
  ResultLog(path, settings, 1).add(result("lcc/1"));
  Item changed = item("lcc/1");
  ++changed.fingerprint;
  const ResultLog file(path, settings, 1);
  check_rejected<std::invalid_argument>([&] { file.find(changed); }, {"lcc.jsonl:5", "lcc/1", "has changed"});
}

TEST_CASE("lines that hold something else are refused") {
  const TemporaryFolder folder;
  const std::string header = R"({"settings":)" + settings.dump() + "}\n";
  for (const char* line : {"{}", R"({"id": 3)", "[]", R"({"id": "a", "runs": []})"}) {
    const auto path = folder.write("log.jsonl", header + line + "\n");
    CHECK_THROWS_WITH_AS(ResultLog(path, settings, 1), doctest::Contains("log.jsonl:2"), std::exception);
  }
  auto empty = nlohmann::json(result("lcc/a"));
  empty["runs"] = nlohmann::json::array();
  const auto path = folder.write("log.jsonl", header + empty.dump() + "\n");
  check_rejected<file_error>([&] { ResultLog(path, settings, 1); }, {"log.jsonl:2", "\"runs\" has 0 runs, expected 1"});
}

TEST_CASE("numbers that no run can have given are refused by name") {
  const TemporaryFolder folder;
  const std::string header = R"({"settings":)" + settings.dump() + "}\n";
  const auto refused = [&](const char* pointer, const nlohmann::json& value, const char* field) {
    auto line = nlohmann::json(result("lcc/a"));
    line.at(nlohmann::json::json_pointer(pointer)) = value;
    CAPTURE(line.dump());
    const auto path = folder.write("log.jsonl", header + line.dump() + "\n");
    check_rejected<file_error>([&] { ResultLog(path, settings, 1); }, {"log.jsonl:2", field});
  };
  refused("/prompt_tokens", 0, "\"prompt_tokens\" is 0");
  refused("/dense_operations", -1, "\"dense_operations\" is -1");
  refused("/runs/0/score", -1, "\"score\" is -1");
  refused("/runs/0/score", 1.5, "\"score\" is 1.5");
  refused("/runs/0/tokens", 1e308, "\"tokens\" is 1e+308");
  refused("/runs/0/tokens", -3, "\"tokens\" is -3");
  refused("/runs/0/ttft_ms", 1e308, "\"ttft_ms\"");
  refused("/runs/0/operations", nullptr, "\"operations\" is null");
  refused("/runs/0/computed_percent", -0.5, "\"computed_percent\"");
  refused("/timing/total_ms/1", 1e300, "\"total_ms\" is 1e+300");
  refused("/timing/total_ms", {1}, "lists of times");
}

TEST_CASE("damaged lines are refused by file, line and field, without the words of a library") {
  const TemporaryFolder folder;
  const std::string header = R"({"settings":)" + settings.dump() + "}\n";
  const auto refused = [&](const nlohmann::json& patch, const std::string& reason) {
    auto line = nlohmann::json(result("lcc/a"));
    line.merge_patch(patch);
    CAPTURE(line.dump());
    const auto path = folder.write("log.jsonl", header + line.dump() + "\n");
    const std::string message = path.string() + ":2: does not hold what this program writes: " + reason;
    CHECK_THROWS_WITH_AS(ResultLog(path, settings, 1), message.c_str(), file_error);
  };
  refused({{"id", nullptr}}, "field \"id\" is missing");
  refused({{"id", 3}}, "field \"id\" is 3, expected a text");
  refused({{"dataset", nullptr}}, "field \"dataset\" is missing");
  auto unknown = nlohmann::json(result("unheard/a"));
  unknown["dataset"] = "unheard";
  folder.write("log.jsonl", header + unknown.dump() + "\n");
  check_rejected<file_error>([&] { ResultLog(folder.path() / "log.jsonl", settings, 1); },
                             {"log.jsonl:2", "unknown data set \"unheard\""});
  refused({{"dataset", "trec"}}, "field \"dataset\" is \"trec\", which does not go with \"id\" \"lcc/a\"");
  refused({{"fingerprint", -1}}, "field \"fingerprint\" is -1, expected a whole number of at least 0");
  refused({{"runs", nullptr}}, "field \"runs\" is missing");
  refused({{"runs", "x"}}, "field \"runs\" is \"x\", expected a list");
  refused({{"runs", {3}}}, "field \"prediction\" is missing");
  refused({{"timing", nullptr}}, "field \"timing\" is missing");
  refused({{"timing", {{"ttft_ms", nullptr}}}}, "field \"ttft_ms\" is missing");
  refused({{"timing", {{"ttft_ms", 3}}}}, "field \"ttft_ms\" is 3, expected a list");
  auto twice = nlohmann::json(result("lcc/a"))["runs"];
  twice.push_back(twice[0]);
  refused({{"runs", twice}}, "field \"runs\" has 2 runs, expected 1");
  twice[0]["prediction"] = 3;
  twice.erase(1);
  refused({{"runs", twice}}, "field \"prediction\" is 3, expected a text");
}
