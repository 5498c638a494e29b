#include <doctest/doctest.h>

#include <fstream>
#include <functional>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "bench/evaluate/metrics.hpp"
#include "examples/llama/files.hpp"
#include "tests/support/failing_icu.hpp"
#include "tests/support/source_folder.hpp"

namespace llama::test {
namespace {

using nlohmann::json;
using Texts = std::vector<std::string>;

/// Far below the bar of 1e-6: both sides do the same steps in f64.
doctest::Approx close_to(double value) { return doctest::Approx(value).epsilon(1e-12); }

json fixture(const std::string& name) {
  return json::parse(
      std::ifstream(lazyllm::test::source_folder() / "tests/reference/fixtures/longbench_metrics" / name));
}

Texts classes_of(const json& item) {
  return item.at("all_classes").is_null() ? Texts{} : item.at("all_classes").get<Texts>();
}

std::vector<json> lines_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
  return lines;
}

using Metric = std::function<double(std::string_view, std::string_view)>;
const std::map<std::string, Metric> metrics{{"token_f1", token_f1},
                                            {"rouge_l", rouge_l},
                                            {"retrieval", retrieval},
                                            {"count", count},
                                            {"code_similarity", code_similarity}};

TEST_CASE("each metric gives what Python gives, on texts of our own") {
  const json items = fixture("made_up.json").at("metrics");
  CHECK(items.size() > 300);
  for (const json& item : items) {
    const std::string name = item.at("metric");
    const std::string prediction = item.at("prediction");
    const std::string answer = item.at("answer");
    CAPTURE(name);
    CAPTURE(prediction);
    CAPTURE(answer);
    const double value = name == "classification" ? classification(prediction, answer, classes_of(item))
                                                  : metrics.at(name)(prediction, answer);
    CHECK(value == close_to(item.at("score")));
  }
}

TEST_CASE("each data set is scored as Python scores it, on texts of our own") {
  const json items = fixture("made_up.json").at("datasets");
  std::set<std::string> names;
  for (const json& item : items) {
    const std::string name = item.at("dataset");
    const std::string prediction = item.at("prediction");
    CAPTURE(name);
    CAPTURE(prediction);
    CHECK(score(name, prediction, item.at("answers").get<Texts>(), classes_of(item)) == close_to(item.at("score")));
    names.insert(name);
  }
  CHECK(names.size() == 26);  // all that there are
}

TEST_CASE("real LongBench predictions get the scores that Python gives them") {
  const std::filesystem::path folder = real_input("longbench");
  if (!std::filesystem::is_directory(folder)) {
    MESSAGE("skipped: LongBench's predictions are not here");
    return;
  }
  json expected = fixture("longbench.json");
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".jsonl") continue;
    for (const json& item : lines_of(file.path())) {
      const std::string id = item.at("_id");
      const std::string prediction = item.at("prediction");
      const Texts answers = item.at("answers");
      CAPTURE(id);
      const json scores = expected.at(id);
      REQUIRE(prediction.size() == scores.at("bytes"));
      CHECK(score(std::string(item.at("dataset")), prediction, answers, classes_of(item)) ==
            close_to(scores.at("score")));
      for (const char* name : {"token_f1", "rouge_l", "count", "code_similarity"}) {
        double best = 0;
        for (const std::string& answer : answers) best = std::max(best, metrics.at(name)(prediction, answer));
        CAPTURE(name);
        CHECK(best == close_to(scores.at(name)));
      }
      expected.erase(id);
    }
  }
  CHECK(expected.empty());
}

TEST_CASE("one sentence of thousands of words, which Python's recursion cannot do") {
  constexpr int words = 4000;
  std::string prediction;
  std::string answer;
  for (int i = 0; i < words; ++i) {
    const std::string number = std::to_string(i) + " ";
    answer += 'w' + number;
    prediction += (i % 4 == 0 ? 'x' : 'w') + number;
  }
  CHECK(rouge_l(prediction, answer) == doctest::Approx(0.75).epsilon(1e-6));
}

TEST_CASE("bytes that are not UTF-8 count as U+FFFD") {
  CHECK(token_f1("lamp \xff", "lamp \xef\xbf\xbd") == close_to(1));
  CHECK(code_similarity("lamp\xc3", "lamp\xef\xbf\xbd") == close_to(1));
}

TEST_CASE("wrong names and missing inputs are named") {
  const Texts answers{"17"};
  const auto refuses = [](const auto& call, const char* message) {
    CHECK_THROWS_WITH_AS(call(), doctest::Contains(message), std::invalid_argument);
  };
  refuses([&] { return score("dureader", "17", answers, {}); }, "unknown data set \"dureader\"");
  refuses([] { return category(""); }, "unknown data set \"\" (known are narrativeqa, qasper,");
  refuses([] { return category_scores(std::vector<DatasetScore>{{"trec", 1}, {"Trec", 1}}); }, "\"Trec\"");
  refuses([&] { return score("trec", "17", answers, {}); }, "\"trec\" needs all_classes");
  refuses([&] { return score("passage_retrieval_en", "17", answers, {}); }, "answer \"17\"");
  refuses([] { return dataset_score({}); }, "not 0");
}

TEST_CASE("data sets belong to LongBench's categories") {
  const std::map<std::string_view, Texts> expected{
      {"single-document QA", {"narrativeqa", "qasper", "multifieldqa_en", "tiny_single_doc_qa"}},
      {"multi-document QA", {"hotpotqa", "2wikimqa", "musique", "tiny_multi_doc_qa", "tiny_two_hop"}},
      {"summarization", {"gov_report", "qmsum", "multi_news", "tiny_summarization"}},
      {"few-shot learning", {"trec", "triviaqa", "samsum", "lsht", "tiny_few_shot"}},
      {"synthetic tasks",
       {"passage_count", "passage_retrieval_en", "tiny_passage_retrieval", "tiny_passkey", "tiny_counting"}},
      {"code completion", {"lcc", "repobench-p", "tiny_code"}}};
  for (const auto& [name, datasets] : expected) {
    for (const std::string& dataset : datasets) CHECK(category(dataset) == name);
  }
}

TEST_CASE("a data set's score is a percentage, a category's the mean of its data sets") {
  CHECK(dataset_score(std::vector<double>{1, 0.5, 0, 0}) == close_to(37.5));
  const std::vector<CategoryScore> scores = category_scores(
      std::vector<DatasetScore>{{"lcc", 40}, {"qasper", 10}, {"trec", 60}, {"narrativeqa", 40}, {"qasper", 10}});
  REQUIRE(scores.size() == 3);
  CHECK(scores[0].category == "single-document QA");
  CHECK(scores[0].score == close_to(20));
  CHECK(scores[0].datasets == 3);
  CHECK(scores[1].category == "few-shot learning");
  CHECK(scores[1].score == close_to(60));
  CHECK(scores[2].category == "code completion");
  CHECK(scores[2].score == close_to(40));
  CHECK(scores[2].datasets == 1);
  CHECK(category_scores({}).empty());
}

TEST_CASE("an answer for which ICU gets no memory is an error, not an empty answer") {
  lazyllm::test::watch_icu();
  const std::string answer(1000, 'x');
  CHECK(token_f1(answer, answer) == 1);
  lazyllm::test::icu_before_failure = 0;
  CHECK_THROWS_AS(token_f1(answer, answer), std::bad_alloc);
  lazyllm::test::icu_before_failure = 0;
  CHECK_THROWS_AS(rouge_l(answer, answer), std::bad_alloc);
}

}  // namespace
}  // namespace llama::test
