#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/evaluate/summary.hpp"

using namespace llama;
using doctest::Approx;

namespace {

ItemResult result(const std::string& dataset, std::vector<double> scores, double operations = 50) {
  ItemResult result;
  result.dataset = dataset;
  result.prompt_tokens = 1000;
  result.dense_operations = 100;
  for (const double score : scores) result.runs.push_back({"", score, 10, 1, 2, operations, 60, 110, 70});
  return result;
}

}  // namespace

TEST_CASE("a category is the mean of its data sets, overall that of the categories") {
  const std::vector<ItemResult> results = {result("qasper", {0.5}), result("narrativeqa", {1}), result("qasper", {0}),
                                           result("lcc", {0.5}),    result("qasper", {0.25}),   result("lcc", {0.7})};
  const Summary summary = summarize(results);
  REQUIRE(summary.categories.size() == 2);
  CHECK(summary.categories[0].mean.name == "single-document QA");
  CHECK(summary.categories[0].datasets.at(0).name == "narrativeqa");
  CHECK(summary.categories[0].datasets.at(1).score == Approx(25));
  CHECK(summary.categories[0].datasets.at(1).items == 3);
  CHECK(summary.categories[0].mean.score == Approx((25 + 100) / 2.0));
  CHECK(summary.categories[0].mean.items == 4);
  CHECK(summary.categories[1].mean.name == "code completion");
  CHECK(summary.categories[1].mean.score == Approx(60));
  CHECK(summary.overall.score == Approx((62.5 + 60) / 2));
  CHECK(summary.overall.items == 6);
  CHECK(!summary.overall.speed);
}

TEST_CASE("ideal speedup counts all operations, the other figures are means") {
  std::vector<ItemResult> results = {result("lcc", {1}, 20), result("lcc", {1}, 80)};
  results[1].dense_operations = 300;
  results[1].prompt_tokens = 3000;
  const Group group = summarize(results).overall;
  CHECK(group.ideal_ttft_speedup == Approx(400.0 / 100));
  CHECK(group.prompt_tokens == Approx(2000));
  CHECK(group.generated_tokens == Approx(10));
  CHECK(group.computed_percent == Approx(60));
  CHECK(group.reserved_percent == Approx(110));
  CHECK(group.filled_percent == Approx(70));
}

TEST_CASE("several runs of each item: their mean, and the score of each") {
  const std::vector<ItemResult> results = {result("lcc", {0, 0.5, 1}), result("lcc", {0.2, 0.1, 0})};
  const Group group = summarize(results).overall;
  CHECK(group.score == Approx(30));
  REQUIRE(group.score_by_run.size() == 3);
  CHECK(group.score_by_run[0] == Approx(10));
  CHECK(group.score_by_run[1] == Approx(30));
  CHECK(group.score_by_run[2] == Approx(50));
}

TEST_CASE("speed: medians of the turns, summed over the timed items of a data set, averaged over data sets") {
  std::vector<ItemResult> results = {result("lcc", {1}), result("lcc", {1}), result("lcc", {1}), result("trec", {1}),
                                     result("repobench-p", {1})};
  results[0].timing = {{8, 100, 9}, {3, 2, 90}, {18, 200, 19}, {10, 9, 99}};  // 9 and 3, 19 and 10
  results[1].timing = {{31}, {7}, {41}, {20}};
  results[4].timing = {{10}, {5}, {10}, {10}};
  const Summary summary = summarize(results);
  const Group& lcc = summary.categories.at(1).datasets.at(0);
  REQUIRE(lcc.speed);
  CHECK(lcc.timed_items == 2);
  CHECK(lcc.speed->dense_ttft_ms == Approx(20));
  CHECK(lcc.speed->ttft_ms == Approx(5));
  CHECK(lcc.speed->ttft_speedup == Approx(4));
  CHECK(lcc.speed->generation_speedup == Approx(2));
  CHECK(summary.categories[1].mean.speed->ttft_speedup == Approx(3));
  CHECK(!summary.categories[0].mean.speed);
  CHECK(summary.overall.speed->ttft_speedup == Approx(3));  // of the categories that were timed
  CHECK(summary.overall.timed_items == 3);
}

TEST_CASE("the table and the JSON hold every group") {
  std::vector<ItemResult> results = {result("lcc", {0.123}), result("trec", {1})};
  results[0].timing = {{20}, {10}, {30}, {20}};
  const Summary summary = summarize(results);
  const std::string text = table(summary);
  for (const char* part : {"few-shot learning", "  trec", "code completion", "  lcc", "overall", " 12.30 ", " 2.00x",
                           " 1.50x", " 60.0", " 110.0", " 70.0", " - "}) {
    CAPTURE(part);
    CHECK(text.find(part) != std::string::npos);
  }
  const auto json = nlohmann::json(to_json(summary));
  CHECK(json.at("overall").at("score").get<double>() == Approx(56.15));
  CHECK(json.at("categories").at("code completion").at("ttft_speedup") == 2);
  CHECK(json.at("datasets").at("lcc").at("category") == "code completion");
  CHECK(json.at("datasets").at("lcc").at("generation_speedup") == 1.5);
  CHECK(!json.at("datasets").at("trec").contains("ttft_speedup"));
  CHECK(json.at("datasets").at("trec").at("timed_items") == 0);
}

TEST_CASE("nothing to summarize") { CHECK_THROWS_AS(summarize({}), std::invalid_argument); }
