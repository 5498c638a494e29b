#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "examples/calibrate/search.hpp"

using namespace llama;

namespace {

constexpr Index layers = 24;
constexpr Index prompts = 8;
constexpr Index positions = 10;

/// Layers over the mean active share.
double speedup(const lazyllm::Preset& preset) {
  double active = 1;
  double work = 0;
  for (Index layer = 0; layer < layers; ++layer) {
    if (const double* keep = preset.schedule.find(layer)) active *= *keep;
    work += active;
  }
  return layers / work;
}

/// A made-up model: a cut costs more the earlier it is and the more of the tokens it takes, and far more with the wrong
/// score or protection. Prompts are harder the higher their number.
double damage(const lazyllm::Preset& preset, Index prompt) {
  double left = 1;
  double sum = 0;
  for (const lazyllm::LayerKeep& point : preset.schedule.points()) {
    const double depth = static_cast<double>(point.layers_run) / layers;
    sum += std::pow(1 - point.keep, 2) * std::pow(1 - depth, 4) + 0.01 / (left *= point.keep);
  }
  if (lazyllm::to_text(preset.score) != "mean:32+heads:max+pool:31") sum *= 2;
  if (preset.protect_last != 64) sum *= 1.5;
  return sum * static_cast<double>(prompt + 1) / prompts;
}

double mean_damage(const lazyllm::Preset& preset) {
  double sum = 0;
  for (Index prompt = 0; prompt < prompts; ++prompt) sum += damage(preset, prompt);
  return sum / prompts;
}

/// Counts its evaluations and checks that none is repeated.
class MadeUp {
 public:
  std::vector<Candidate> search(const std::vector<double>& speedups, Index most, const SharedMembers& shared = {},
                                std::function<Index()> affordable = nullptr) {
    const SearchProblem problem{
        .layers = layers,
        .prompts = prompts,
        .shared = shared,
        .ideal_speedup = speedup,
        .evaluate =
            [this](const lazyllm::Preset& preset, Index prompt) {
              const auto [_, fresh] = asked_.emplace(nlohmann::json(preset).dump(), prompt);
              CHECK(fresh);
              return Outcome{positions, positions - std::min<Index>(positions, prompt),
                             damage(preset, prompt) * positions};
            },
        .affordable = std::move(affordable),
        .out_of_time = out_of_time,
        .found = [this](const Candidate& better) { found_.push_back(better); },
    };
    auto result = llama::search(problem, speedups, most);
    CHECK(std::ssize(asked_) <= most);
    return result;
  }

  std::function<void()> out_of_time;

  Index evaluations() const { return std::ssize(asked_); }
  const std::vector<Candidate>& found() const { return found_; }

 private:
  std::set<std::pair<std::string, Index>> asked_;
  std::vector<Candidate> found_;
};

}  // namespace

TEST_CASE("search: just as fast as asked, with the right score and protection, and no worse than any single cut") {
  MadeUp made_up;
  const std::vector<double> speedups = {1.5, 2.4};
  const std::vector<Candidate> found = made_up.search(speedups, 120 * prompts);
  REQUIRE(found.size() == 2);
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(speedups[i]);
    CHECK(found[i].ideal_speedup == doctest::Approx(speedup(found[i].preset)));
    CHECK(found[i].ideal_speedup >= speedups[i]);
    CHECK(found[i].ideal_speedup < 1.02 * speedups[i]);
    CHECK(lazyllm::to_text(found[i].preset.score) == "mean:32+heads:max+pool:31");
    CHECK(found[i].preset.protect_last == 64);
    CHECK(found[i].agreement.prompts == prompts);
    CHECK(found[i].agreement.kl == doctest::Approx(mean_damage(found[i].preset)));
    // Single cuts of the same speed; the search may end a little off the best.
    for (Index layer = 1; layer < layers; ++layer) {
      lazyllm::Preset single = found[i].preset;
      const double work = layers / found[i].ideal_speedup;
      const double keep = (work - static_cast<double>(layer)) / static_cast<double>(layers - layer);
      if (keep <= 0) break;
      single.schedule = lazyllm::Schedule{{layer, keep}};
      CHECK(found[i].agreement.kl <= 1.1 * mean_damage(single));
    }
  }
  CHECK(found[1].agreement.kl > found[0].agreement.kl);
}

TEST_CASE("search: members that all presets share are not searched") {
  MadeUp made_up;
  const SharedMembers shared{.score = lazyllm::parse_score("max:8"),
                             .protect_first = 7,
                             .protect_last = 48,
                             .max_revived = 90,
                             .decode_revived = 6,
                             .first_revived = {},
                             .continuations = 1,
                             .revive_from = 2};
  made_up.search({1.5, 2.4}, 60 * prompts, shared);
  REQUIRE(made_up.found().size() > 2);
  for (const Candidate& candidate : made_up.found()) {
    const lazyllm::Preset& preset = candidate.preset;
    CHECK(lazyllm::to_text(preset.score) == "max:8");
    CHECK(preset.protect_first == 7);
    CHECK(preset.protect_last == 48);
    CHECK(preset.max_revived == 90);
    CHECK(preset.decode_revived == 6);
    CHECK_FALSE(preset.first_revived);
    CHECK(preset.continuations == 1);
    CHECK(preset.revive_from == 2);
  }
}

TEST_CASE(
    "search: a decode step revives no more rows than it may, at all pruning layers or at the last as agrees better") {
  for (const Index rows : {1, 2, 5, 17}) {
    for (const bool deepest : {false, true}) {
      if (rows == 1 && deepest) continue;  // no pruning layer revives
      CAPTURE(rows);
      CAPTURE(deepest);
      const SearchProblem problem{
          .layers = layers,
          .prompts = 2,
          .shared = {.decode_rows = rows},
          .ideal_speedup = speedup,
          .evaluate = [&](const lazyllm::Preset& preset, Index prompt) -> Outcome {
            const auto& points = preset.schedule.points();
            const Index reviving = std::ranges::count_if(points, [&](const lazyllm::LayerKeep& point) {
              return point.layers_run >= preset.revive_from.value_or(0);
            });
            const Index revived = *preset.decode_revived * reviving;
            CHECK(revived <= rows - 1);
            CHECK(revived + reviving > rows - 1);  // one more at each would be too many
            CHECK(preset.max_revived == lazyllm::recommended_max_revived);
            CHECK(preset.first_revived == 32);
            CHECK(preset.continuations == 2);
            const bool is_last = preset.revive_from == points.back().layers_run;
            const double few = points.size() < 3 ? 9 : 1;  // with one cut there is nothing to share
            return {1, 0, damage(preset, prompt) * few * (is_last == deepest ? 1 : 3)};
          },
      };
      const lazyllm::Preset found = llama::search(problem, {2.4}, 100)[0].preset;
      const Index cuts = std::ssize(found.schedule.points());
      REQUIRE(cuts > 1);
      if (rows == 1) {
        CHECK(found.decode_revived == 0);
      } else if (deepest || rows == 2) {
        CHECK(found.decode_revived == rows - 1);
        CHECK(found.revive_from == found.schedule.points().back().layers_run);
      } else {
        CHECK(found.decode_revived == (rows - 1) / std::min(cuts, rows - 1));
        CHECK(found.revive_from.has_value() == (cuts > rows - 1));
      }
    }
  }
}

TEST_CASE("search: what it reports gets better and ends with the result") {
  MadeUp made_up;
  const std::vector<Candidate> result = made_up.search({2}, 60 * prompts);
  REQUIRE(made_up.found().size() > 2);
  for (std::size_t i = 1; i < made_up.found().size(); ++i) {
    CHECK(made_up.found()[i].agreement.kl < made_up.found()[i - 1].agreement.kl);
  }
  CHECK(made_up.found().back().agreement.kl == result[0].agreement.kl);
}

TEST_CASE("search: takes what there is time for, shared among the speedups, and at least one schedule for each") {
  const std::vector<double> speedups = {1.5, 2.34, 3};
  MadeUp unbounded;
  unbounded.search(speedups, 600);
  REQUIRE(unbounded.evaluations() > 400);
  for (const Index time : {0, 30, 200}) {
    CAPTURE(time);
    MadeUp bounded;
    const auto found = bounded.search(speedups, 600, {}, [&] { return time - bounded.evaluations(); });
    CHECK(found.size() == speedups.size());
    CHECK(bounded.evaluations() <= std::max<Index>(time, prompts * std::ssize(speedups)));
    CHECK(bounded.evaluations() >= std::min<Index>(time, 150));
    for (const Candidate& candidate : found) CHECK(candidate.agreement.prompts == prompts);
  }
  // Later ones get their share where the first ones turn out to be slow, and all of it where they turn out to be fast.
  MadeUp slow;
  const auto found =
      slow.search(speedups, 600, {}, [&] { return slow.evaluations() < 40 ? 300 : 100 - slow.evaluations(); });
  CHECK(found.size() == speedups.size());
  CHECK(slow.evaluations() <= 100);
  MadeUp fast;
  fast.search(speedups, 600, {}, [&] { return fast.evaluations() < 8 ? 24 : 600; });
  CHECK(fast.evaluations() > 250);
}

TEST_CASE("search: each speedup gets its part of the time, also where the first guess was wrong") {
  const std::vector<double> speedups = {1.5, 2.34, 3};
  for (const Index guess : {375, 240}) {  // in place of 300
    CAPTURE(guess);
    MadeUp made_up;
    const auto found = made_up.search(speedups, 600, {}, [&] {
      const Index now = made_up.evaluations();
      return now == 0 ? guess : 300 - now;
    });
    REQUIRE(found.size() == 3);
    std::array<Index, 3> reports = {};
    for (const Candidate& better : made_up.found()) {
      for (std::size_t i = 0; i < 3; ++i) {
        if (better.ideal_speedup >= speedups[i] && better.ideal_speedup < 1.1 * speedups[i]) ++reports[i];
      }
    }
    for (std::size_t i = 0; i < 3; ++i) {
      CAPTURE(i);
      CHECK(reports[i] > 1);  // of the first schedules, and of a variant that is better
    }
    CHECK(made_up.evaluations() <= 300 + prompts);
    CHECK(made_up.evaluations() > 250);
  }
}

TEST_CASE("search: says that time has ended it, and only then") {
  for (const Index time : {60, 100'000}) {
    CAPTURE(time);
    MadeUp made_up;
    bool out_of_time = false;
    made_up.out_of_time = [&] { out_of_time = true; };
    made_up.search({1.5, 2.4}, 600, {}, [&] { return time - made_up.evaluations(); });
    CHECK(out_of_time == (time == 60));
  }
}

TEST_CASE("search: any number of evaluations gives a result, more give no worse one, and equal searches equal ones") {
  double before = 1e9;
  for (const Index most : {2 * prompts, 2 * prompts + 1, 6 * prompts, 40 * prompts, 100 * prompts}) {
    CAPTURE(most);
    MadeUp first, second;
    const auto result = first.search({1.5, 3}, most);
    const auto again = second.search({1.5, 3}, most);
    CHECK(nlohmann::json(again[1].preset) == nlohmann::json(result[1].preset));
    CHECK(second.evaluations() == first.evaluations());
    CHECK(result[0].agreement.kl <= before * 1.05);
    before = result[0].agreement.kl;
  }
}

TEST_CASE("search: models of any depth") {
  for (const Index depth : {2, 3, 80}) {
    CAPTURE(depth);
    const SearchProblem problem{
        .layers = depth,
        .prompts = 2,
        .ideal_speedup =
            [](const lazyllm::Preset& preset) {
              double share = 1;
              for (const lazyllm::LayerKeep& point : preset.schedule.points()) share *= point.keep;
              return 1 / share;
            },
        .evaluate = [&](const lazyllm::Preset& preset, Index prompt) -> Outcome {
          preset.schedule.check(depth);
          return {prompt + 1, 0, static_cast<double>(preset.schedule.points().front().layers_run)};
        },
    };
    const auto result = llama::search(problem, {2}, 400);
    CHECK(result[0].ideal_speedup >= 2);
    CHECK(result[0].preset.schedule.points().front().layers_run == 1);
  }
}

TEST_CASE("search: what cannot be searched is refused") {
  SearchProblem problem{.layers = 24, .prompts = 0, .ideal_speedup = speedup, .evaluate = {}};
  const auto refused = [&](const std::vector<double>& speedups, Index evaluations, const char* part) {
    CHECK_THROWS_WITH_AS(llama::search(problem, speedups, evaluations), doctest::Contains(part), std::invalid_argument);
  };
  refused({2}, 10, "0 prompts");
  problem.prompts = 4;
  refused({2}, 3, "at least 4, one for each prompt and speedup");
  refused({2, 3}, 7, "at least 8");
  refused({1}, 10, "a speedup of 1 is out of range: it must be above 1");
  refused({2, 2}, 10, "a speedup of 2 is out of range: it must be above 2");
  refused({50}, 10, "a speedup of 50 is out of reach with a model of 24 layers");
  refused({2, 50}, 10, "a speedup of 50 is out of reach");  // before anything is run: there is nothing to run it with
  problem.layers = 1;
  refused({2}, 10, "a speedup of 2 is out of reach with a model of 1 layers");
  problem.shared.revive_from = 3;
  refused({2}, 10, "revive_from 3 needs decode_revived");
}

TEST_CASE("summarize: means over the positions") {
  const std::vector<Outcome> outcomes = {{1, 0, 2.0}, {4, 1, 0.5}, {9, 8, 1.0}};
  const Agreement agreement = summarize(outcomes);
  CHECK(agreement.kl == doctest::Approx(3.5 / 14));
  CHECK(agreement.top1 == doctest::Approx(9.0 / 14));
  CHECK(agreement.prompts == 3);
  CHECK(agreement.tokens == 14);
  CHECK_THROWS_WITH_AS(summarize({}), doctest::Contains("0 outcomes"), std::invalid_argument);
  CHECK_THROWS_WITH_AS(summarize(std::vector<Outcome>{{0, 0, 0}}), doctest::Contains("0 positions"),
                       std::invalid_argument);
}

TEST_CASE("summarize: intervals hold the mean, are of the prompts' spread, and are nothing where all are alike") {
  std::vector<Outcome> spread;
  for (Index i = 0; i < 100; ++i) spread.push_back({1, i % 2, static_cast<double>(i % 2)});
  const Agreement agreement = summarize(spread);
  // Of the mean of 100 coins: 0.5 +- 1.96 * 0.05.
  CHECK(agreement.kl_interval.low == doctest::Approx(0.402).epsilon(0.06));
  CHECK(agreement.kl_interval.high == doctest::Approx(0.598).epsilon(0.06));
  CHECK(agreement.top1_interval.low == agreement.kl_interval.low);
  const Agreement alike = summarize(std::vector<Outcome>(5, {4, 3, 0.5}));
  CHECK(alike.kl_interval.low == doctest::Approx(0.125));
  CHECK(alike.kl_interval.high == doctest::Approx(0.125));
  CHECK(alike.top1_interval.low == doctest::Approx(0.75));
}
