#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "bench/evaluate/reader.hpp"
#include "examples/llama/base.hpp"
#include "examples/llama/checkpoint/error.hpp"
#include "examples/llama/files/file_error.hpp"
#include "tests/examples/llama/checkpoint/support.hpp"
#include "tests/examples/llama/failing_large_allocations.hpp"

using namespace llama;
using test::TemporaryFolder;
using testing::check_rejected;

namespace {

using Texts = std::vector<std::string>;

/// Data of one file with these lines.
Data read_lines(const std::string& lines, DataOptions options = {}, const std::string& name = "tiny_two_hop.jsonl") {
  const TemporaryFolder folder;
  options.data = folder.write(name, lines);
  return read_data(options);
}

/// The item of the only line.
Item read_one(const std::string& line, DataOptions options = {}, const std::string& name = "tiny_two_hop.jsonl") {
  Data data = read_lines(line + "\n", std::move(options), name);
  for (const BadLine& bad : data.bad_lines) FAIL_CHECK(bad.reason);
  REQUIRE(data.items.size() == 1);
  return data.items[0];
}

/// What is wrong with the only line, whose length must be said to be 1.
std::string reason(const std::string& line, DataOptions options = {}) {
  options.max_tokens = options.max_tokens.value_or(8);
  const Data data = read_lines(line, std::move(options));
  CHECK(data.items.empty());
  if (data.bad_lines.size() != 1) return {};
  CHECK(data.bad_lines[0].place.ends_with("tiny_two_hop.jsonl:1"));
  return data.bad_lines[0].reason;
}

}  // namespace

TEST_CASE("a line with a rendered prompt") {
  const Item item = read_one(
      R"({"_id": "x7", "dataset": "trec", "prompt": "What?\n", "answers": ["Food"], "all_classes": ["Food", "Date"], )"
      R"("max_tokens": 5, "category": "few-shot learning", "unknown": {}})");
  CHECK(item.id == "trec/x7");
  CHECK(item.place.ends_with("tiny_two_hop.jsonl:1"));
  CHECK(item.dataset == "trec");
  CHECK(item.prompt == "What?\n");
  CHECK(item.answers == Texts{"Food"});
  CHECK(item.all_classes == Texts{"Food", "Date"});
  CHECK(item.max_tokens == 5);
}

TEST_CASE("what a line may leave open") {
  DataOptions options;
  options.max_tokens = 9;
  const Item item = read_one(R"({"prompt": "p", "answers": ["a"], "all_classes": null})", options);
  CHECK(item.id == "tiny_two_hop/tiny_two_hop:1");
  CHECK(item.dataset == "tiny_two_hop");  // the file's name
  CHECK(item.all_classes.empty());
  CHECK(item.max_tokens == 9);
  CHECK(read_one(R"({"_id": 12, "prompt": "p", "answers": ["a"]})", options).id == "tiny_two_hop/12");
}

TEST_CASE("answers are a list, a text, or a text that holds a list") {
  const auto answers = [](const std::string& json) {
    DataOptions options;
    options.max_tokens = 1;
    return read_one(R"({"prompt": "p", "answers": )" + json + "}", options).answers;
  };
  CHECK(answers(R"(["a", "b"])") == Texts{"a", "b"});
  CHECK(answers(R"("a")") == Texts{"a"});
  CHECK(answers(R"("")") == Texts{""});
  CHECK(answers(R"("[\"a\", \"b c\"]")") == Texts{"a", "b c"});
  CHECK(answers(R"("[\"a\"]\u0000]")") == Texts{std::string("[\"a\"]\0]", 7)});
  CHECK(answers(R"("[a, b]")") == Texts{"[a, b]"});  // a line of code, not a list
  CHECK(answers(R"("[1, 2]")") == Texts{"[1, 2]"});
  CHECK(answers(R"("{\"a\": 1}")") == Texts{R"({"a": 1})"});
}

TEST_CASE("the length of an answer is the line's, else the data set's, else the option") {
  const TemporaryFolder folder;
  DataOptions options;
  options.max_tokens = 7;
  options.lengths = folder.write("lengths.json", R"({"tiny_two_hop": 20, "trec": 64})");
  CHECK(read_one(R"({"prompt": "p", "answers": "a", "max_tokens": 3})", options).max_tokens == 3);
  CHECK(read_one(R"({"prompt": "p", "answers": "a"})", options).max_tokens == 20);
  CHECK(read_one(R"({"prompt": "p", "answers": "a", "dataset": "tiny_code"})", options).max_tokens == 7);
  options.longest_answer = 5;
  CHECK(read_one(R"({"prompt": "p", "answers": "a", "max_tokens": 3})", options).max_tokens == 3);
  CHECK(read_one(R"({"prompt": "p", "answers": "a"})", options).max_tokens == 5);
  CHECK(read_one(R"({"prompt": "p", "answers": "a", "dataset": "tiny_code"})", options).max_tokens == 5);
  options.max_tokens.reset();
  const auto without = [&] {
    return read_lines(R"({"prompt": "p", "answers": "a", "dataset": "tiny_code"})", options);
  };
  CHECK(without().bad_lines.at(0).reason.find("--max-tokens is not given") != std::string::npos);
  options.lengths.clear();
  CHECK(without().bad_lines.at(0).reason.find("neither --lengths nor --max-tokens") != std::string::npos);
}

TEST_CASE("LongBench's lines are rendered once with the data set's format") {
  const TemporaryFolder folder;
  DataOptions options;
  options.max_tokens = 4;
  options.prompts = folder.write("prompts.json", R"({"tiny_two_hop": "{{x}} {context}|{input}|{context}\n"})");
  // Braces of the text itself mean nothing.
  const Item item = read_one(R"({"context": "{input} {", "input": "q}", "answers": "a"})", options);
  CHECK(item.prompt == "{x} {input} {|q}|{input} {\n");
  CHECK(read_one(R"({"prompt": "{context}", "answers": "a"})", options).prompt == "{context}");

  CHECK(reason(R"({"context": "c", "answers": "a"})", options) == "the field input is missing");
  CHECK(reason(R"({"context": 1, "input": "q", "answers": "a"})", options) == "context is 1, not a text");
  CHECK(reason(R"({"context": "c", "input": "q", "answers": "a", "dataset": "trec"})", options) ==
        "there is no field prompt and no prompt format for the data set trec");
  CHECK(reason(R"({"context": "c", "input": "q", "answers": "a"})").find("--prompts is needed") != std::string::npos);
  for (const char* format : {"a { b", "a } b", "{context", "x}"}) {
    folder.write("prompts.json", nlohmann::json{{"tiny_two_hop", format}}.dump());
    CHECK(reason(R"({"context": "c", "input": "q", "answers": "a"})", options).find("single '") != std::string::npos);
  }
}

TEST_CASE("each kind of bad line has its reason") {
  CHECK(reason("{bad").starts_with("not valid JSON"));
  CHECK(reason("{\"prompt\": \"p").starts_with("not valid JSON"));
  CHECK(reason("{\"prompt\": \"\xff\", \"answers\": \"a\"}").starts_with("not valid JSON"));  // not UTF-8
  const std::string record = R"({"prompt": "p", "answers": "a"})";
  CHECK(reason(record + '\0' + record) == "not valid JSON: a zero byte at line 1, column 32");
  CHECK(reason("[]") == "the line is not a JSON object");
  CHECK(reason(R"({"prompt": "p"})") == "the field answers is missing");
  CHECK(reason(R"({"prompt": "p", "answers": []})") == "answers is empty");
  CHECK(reason(R"({"prompt": "p", "answers": 3})") == "answers is 3, not texts");
  CHECK(reason(R"({"prompt": "p", "answers": ["a", 3]})") == R"(answers is ["a",3], not texts)");
  CHECK(reason(R"({"prompt": "", "answers": "a"})") == "the prompt is empty");
  CHECK(reason(R"({"prompt": null, "answers": "a"})") == "prompt is null, not a text");
  CHECK(reason(R"({"prompt": "p", "answers": "a", "dataset": 5})") == "dataset is 5, not a text");
  CHECK(reason(R"({"prompt": "p", "answers": "a", "dataset": "unheard"})").find("unheard") != std::string::npos);
  CHECK(reason(R"({"prompt": "p", "answers": "a", "dataset": "trec"})").find("all_classes") != std::string::npos);
  CHECK(reason(R"({"prompt": "p", "answers": "a", "all_classes": "x"})") == R"(all_classes is "x", not null or texts)");
  CHECK(reason(R"({"prompt": "p", "answers": "a", "dataset": "passage_retrieval_en"})").find("Paragraph") !=
        std::string::npos);
  for (const char* length : {"0", "-1", "2.5", "\"3\"", "null", "1048577", "99999999999999999999"}) {
    const std::string line = R"({"prompt": "p", "answers": "a", "max_tokens": )" + std::string(length) + "}";
    CHECK(reason(line).find("not a whole number from 1 to 1048576") != std::string::npos);
  }
  CHECK(reason(R"({"prompt": "p", "answers": "a", "_id": []})") == "_id is [], not a text");
}

TEST_CASE("bad lines are counted by their numbers in the file and the others are read") {
  DataOptions options;
  options.max_tokens = 1;
  const std::string good = R"(", "prompt": "p", "answers": "a"})";
  const Data data = read_lines("{\"_id\": \"0" + good + "\n\n \t\r\n{\n{\"_id\": \"1" + good + "\r\n{\"_id\": \"0" +
                                   good + "\n{\"_id\": \"2" + good,
                               options);
  REQUIRE(data.items.size() == 3);
  CHECK(data.items[1].place.ends_with(":5"));
  CHECK(data.items[2].place.ends_with(":7"));  // no newline at its end
  REQUIRE(data.bad_lines.size() == 2);
  CHECK(data.bad_lines[0].place.ends_with("tiny_two_hop.jsonl:4"));
  CHECK(data.bad_lines[1].place.ends_with("tiny_two_hop.jsonl:6"));
  CHECK(data.bad_lines[1].reason == "an earlier line has the same _id, tiny_two_hop/0");
}

TEST_CASE("a folder is all of its *.jsonl in the order of their names; a limit counts the items of each data set") {
  const TemporaryFolder folder;
  const std::string line = "{\"prompt\": \"p\", \"answers\": \"a\"}\n";
  folder.write("tiny_code.jsonl", line + line + line);
  folder.write("qasper.jsonl", line + "{\n" + line + line + R"({"prompt": "p", "answers": "a", "dataset": "lcc"})");
  folder.write("notes.txt", line);
  DataOptions options;
  options.max_tokens = 1;
  options.data = folder.path();
  const auto datasets = [&] {
    Texts names;
    for (const Item& item : read_data(options).items) names.push_back(item.dataset);
    return names;
  };
  CHECK(datasets() == Texts{"qasper", "qasper", "qasper", "lcc", "tiny_code", "tiny_code", "tiny_code"});
  options.limit = 2;
  CHECK(datasets() == Texts{"qasper", "qasper", "lcc", "tiny_code", "tiny_code"});
  CHECK(read_data(options).items[1].place.ends_with("qasper.jsonl:3"));  // a bad line does not count
  CHECK(read_data(options).bad_lines.size() == 1);
  std::filesystem::create_symlink("none", folder.path() / "more.jsonl");
  check_rejected<file_error>([&] { read_data(options); }, {"more.jsonl", "No such file"});
}

TEST_CASE("no line is lost or blamed where memory runs out") {
  const TemporaryFolder folder;
  const std::string line = R"({"prompt": ")" + std::string(100'000, 'p') + R"(", "answers": "a"})";
  DataOptions options;
  options.max_tokens = 1;
  options.data = folder.write("tiny_code.jsonl", line + "\n" + line + "\n");
  test::check_nothing_is_lost(50'000, [&] {
    const Data data = read_data(options);
    CHECK(data.items.size() == 2);
    CHECK(data.bad_lines.empty());
  });
}

TEST_CASE("files that cannot be read") {
  const TemporaryFolder folder;
  DataOptions options;
  options.data = folder.path() / "none.jsonl";
  check_rejected<file_error>([&] { read_data(options); }, {"none.jsonl", "No such file"});
  options.data = folder.path();
  check_rejected<std::invalid_argument>([&] { read_data(options); }, {folder.path().string(), "no *.jsonl"});
  options.data = folder.write("trec.jsonl", "");
  CHECK(read_data(options).items.empty());
  options.prompts = folder.path() / "none.json";
  check_rejected<file_error>([&] { read_data(options); }, {"none.json", "No such file"});
  options.prompts = folder.write("bad.json", "{");
  check_rejected<checkpoint_error>([&] { read_data(options); }, {"bad.json", "not valid JSON"});
  options.prompts = folder.write("bad.json", "[1]");
  check_rejected<std::invalid_argument>([&] { read_data(options); }, {"bad.json", "JSON object"});
  options.prompts = folder.write("bad.json", R"({"trec": 3})");
  check_rejected<std::invalid_argument>([&] { read_data(options); }, {"bad.json", "trec is 3, not a text"});
  options.prompts.clear();
  for (const char* length : {"0", "-4", "\"x\"", "1.5", "1048577", "9223372036854775807", "18446744073709551615"}) {
    options.lengths = folder.write("bad.json", R"({"trec": )" + std::string(length) + "}");
    check_rejected<std::invalid_argument>([&] { read_data(options); }, {"bad.json", std::string("trec is ") + length,
                                                                        "not a whole number from 1 to 1048576"});
  }
}

TEST_CASE("the fingerprint changes with everything that a result depends on") {
  const char* lines[] = {R"({"prompt": "p", "answers": ["a"], "max_tokens": 3})",
                         R"({"prompt": "p", "answers": ["a"], "max_tokens": 4})",
                         R"({"prompt": "pa", "answers": [""], "max_tokens": 3})",
                         R"({"prompt": "p", "answers": ["a", ""], "max_tokens": 3})",
                         R"({"prompt": "p", "answers": ["a"], "all_classes": ["a"], "max_tokens": 3})",
                         R"({"prompt": "p", "answers": ["a"], "dataset": "tiny_code", "max_tokens": 3})"};
  std::set<std::uint64_t> seen;
  for (const char* line : lines) seen.insert(read_one(line).fingerprint);
  CHECK(seen.size() == std::size(lines));
  const Item renamed = read_one(R"({"_id": "other", "prompt": "p", "answers": "a", "max_tokens": 3})");
  CHECK(renamed.fingerprint == read_one(lines[0]).fingerprint);
}

TEST_CASE("LongBench's own files are read without a bad line") {
  const auto folder = test::real_input("longbench");
  if (!std::filesystem::exists(folder)) {
    MESSAGE("skipped: LongBench's data are absent");
    return;
  }
  DataOptions options;
  options.data = folder;
  options.lengths = folder / "config/dataset2maxlen.json";
  const Data data = read_data(options);
  CHECK(data.bad_lines.empty());
  std::map<std::string, Index> counts, lengths;
  for (const Item& item : data.items) {
    ++counts[item.dataset];
    lengths[item.dataset] = item.max_tokens;
  }
  CHECK(counts.size() == 16);
  CHECK(data.items.size() == 98);
  CHECK(counts["lcc"] == 13);
  CHECK(lengths["gov_report"] == 512);
  CHECK(lengths["narrativeqa"] == 128);

  // The same question as LongBench itself publishes it.
  const TemporaryFolder raw;
  options.data = raw.write(
      "hotpotqa.jsonl",
      R"({"input": "Who?", "context": "Passage 1:\nBob", "answers": ["Bob"], "all_classes": null, "_id": "1"})");
  options.prompts = folder / "config/dataset2prompt.json";
  const Item item = read_data(options).items.at(0);
  CHECK(
      item.prompt.ends_with("are given passages.\nPassage 1:\nBob\n\nAnswer the question based on the given passages. "
                            "Only give me the answer and do not output any other words.\n\nQuestion: Who?\nAnswer:"));
  CHECK(item.max_tokens == 32);
}
