#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "examples/calibrate/search.hpp"

using namespace llama;

namespace {

constexpr Index layers = 12;
constexpr Index prompts = 10;
constexpr Index positions = 20;

/// The active share in each layer.
std::array<double, layers> profile(const lazyllm::Schedule& schedule) {
  std::array<double, layers> active{};
  double share = 1;
  for (Index layer = 0; layer < layers; ++layer) {
    if (const double* keep = schedule.find(layer)) share *= *keep;
    active[static_cast<std::size_t>(layer)] = share;
  }
  return active;
}

double speedup(const lazyllm::Preset& preset) {
  double work = 0;
  for (const double share : profile(preset.schedule)) work += share;
  return layers / work;
}

/// A made-up model. A cut costs more the earlier it is and the less it leaves, and far more with the wrong scorer or
/// without protection. Prompts are harder the higher their number.
double damage(const lazyllm::Preset& preset) {
  const auto active = profile(preset.schedule);
  double sum = 0;
  for (const lazyllm::LayerKeep& point : preset.schedule.points()) {
    const double left = active[static_cast<std::size_t>(point.layers_run)];
    sum += 0.004 * std::pow(0.6, static_cast<double>(point.layers_run)) * (1 / left - 1);
  }
  sum *= preset.score.text() == "max:16" ? 1 : 8;
  return preset.protect_last == 64 ? sum : 3 * sum;
}

Index lost(const lazyllm::Preset& preset, Index prompt) {
  const double share = damage(preset) * 2 * static_cast<double>(prompt) / (prompts - 1);
  return std::min(positions, static_cast<Index>(share * positions));
}

std::vector<SearchPrompt> two_categories() {
  std::vector<SearchPrompt> result;
  for (Index prompt = 0; prompt < prompts; ++prompt) result.push_back({prompt % 2 == 0 ? "even" : "odd", positions});
  return result;
}

/// Counts its evaluations and checks that none is repeated.
class MadeUp {
 public:
  SearchResult search(const std::vector<double>& losses, Index most) {
    const SearchProblem problem{
        .layers = layers,
        .prompts = two_categories(),
        .ideal_speedup = speedup,
        .evaluate =
            [this](const lazyllm::Preset& preset, Index prompt) {
              const auto [_, fresh] = asked_.emplace(nlohmann::json(preset).dump(), prompt);
              CHECK(fresh);
              return Outcome{positions, positions - lost(preset, prompt), damage(preset)};
            },
    };
    const SearchResult result = llama::search(problem, losses, most);
    CHECK(std::ssize(asked_) <= most);
    return result;
  }

  Index evaluations() const { return std::ssize(asked_); }

 private:
  std::set<std::pair<std::string, Index>> asked_;
};

double loss(const lazyllm::Preset& preset) {
  Index sum = 0;
  for (Index prompt = 0; prompt < prompts; ++prompt) sum += lost(preset, prompt);
  return static_cast<double>(sum) / (prompts * positions);
}

/// The fastest schedule of up to three cuts with some shares, with the right scorer and protection.
double fastest(double most) {
  constexpr std::array shares = {0.8,  0.7, 0.6,  0.5,  0.4,  0.3,  0.25, 0.2,  0.15,
                                 0.12, 0.1, 0.08, 0.06, 0.05, 0.04, 0.03, 0.02, 0.01};
  double best = 1;
  const auto consider = [&](std::vector<lazyllm::LayerKeep> points, const auto& deeper) -> void {
    const lazyllm::Preset preset{
        .schedule = lazyllm::Schedule(points), .score = lazyllm::AttentionScore::parse("max:16"), .protect_last = 64};
    if (loss(preset) > most) return;
    best = std::max(best, speedup(preset));
    if (points.size() == 3) return;
    const double active = profile(preset.schedule).back();
    for (Index layer = points.empty() ? 1 : points.back().layers_run + 1; layer < layers; ++layer) {
      for (const double share : shares) {
        if (share >= active - 1e-9) continue;
        points.push_back({layer, share / active});
        deeper(points, deeper);
        points.pop_back();
      }
    }
  };
  consider({}, consider);
  return best;
}

}  // namespace

TEST_CASE("search: close to the best of all schedules, within the evaluations, with the right scorer") {
  MadeUp made_up;
  const std::vector<double> losses = {0.01, 0.05, 0.1};
  const SearchResult result = made_up.search(losses, 100 * prompts);
  REQUIRE(result.best.size() == 3);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    CAPTURE(losses[i]);
    const Candidate& found = result.best[i];
    const double best = fastest(losses[i]);
    CHECK(found.preset.score.text() == "max:16");
    CHECK(found.preset.protect_last == 64);
    CHECK(found.agreement.loss == doctest::Approx(loss(found.preset)));
    CHECK(found.agreement.loss <= losses[i]);
    CHECK(found.agreement.prompts == prompts);
    CHECK(found.ideal_speedup == doctest::Approx(speedup(found.preset)));
    CHECK(found.ideal_speedup >= 0.95 * best);
  }
}

TEST_CASE("search: the front is of complete evaluations, each faster than those that lose less") {
  MadeUp made_up;
  const SearchResult result = made_up.search({0.05}, 60 * prompts);
  REQUIRE(result.front.size() > 2);
  CHECK(result.front.front().agreement.loss == 0);
  for (std::size_t i = 0; i < result.front.size(); ++i) {
    CHECK(result.front[i].agreement.loss == doctest::Approx(loss(result.front[i].preset)));
    CHECK(result.front[i].agreement.prompts == prompts);
    if (i == 0) continue;
    CHECK(result.front[i].ideal_speedup > result.front[i - 1].ideal_speedup);
    CHECK(result.front[i].agreement.loss > result.front[i - 1].agreement.loss);
  }
}

TEST_CASE("search: any number of evaluations gives a result, and equal searches give equal results") {
  for (const Index most : {prompts, prompts + 1, 3 * prompts, 20 * prompts}) {
    CAPTURE(most);
    MadeUp first, second;
    const SearchResult result = first.search({0.01, 0.1}, most);
    CHECK(result.best[0].agreement.loss <= 0.01);
    CHECK(result.best[1].agreement.loss <= 0.1);
    const SearchResult again = second.search({0.01, 0.1}, most);
    CHECK(nlohmann::json(again.best[1].preset) == nlohmann::json(result.best[1].preset));
    CHECK(second.evaluations() == first.evaluations());
  }
  MadeUp one;
  CHECK(one.search({0.1}, prompts).best[0].preset.schedule.points().empty());
}

TEST_CASE("search: models of any depth, and where every cut is wrong nothing is cut") {
  for (const Index depth : {1, 2, 3, 80}) {
    CAPTURE(depth);
    for (const bool harmless : {false, true}) {
      const SearchProblem problem{
          .layers = depth,
          .prompts = {{"", 3}, {"", 5}},
          .ideal_speedup =
              [](const lazyllm::Preset& preset) {
                double share = 1;
                for (const lazyllm::LayerKeep& point : preset.schedule.points()) share *= point.keep;
                return 1 / share;
              },
          .evaluate = [&](const lazyllm::Preset& preset, Index prompt) -> Outcome {
            preset.schedule.check(depth);
            const bool right = harmless || preset.schedule.points().empty();
            const Index count = prompt == 0 ? 3 : 5;
            return {count, right ? count : 0, right ? 0.0 : 9.0};
          },
      };
      const SearchResult result = llama::search(problem, {0.1}, 400);
      CHECK(result.best[0].preset.schedule.points().empty() == (!harmless || depth == 1));
      CHECK(result.best[0].agreement.loss == 0);
    }
  }
}

TEST_CASE("search: no category is sacrificed for the average, but for a single token") {
  // Cuts before layer 6 ruin one category of ten, and any cut costs another one token of ten.
  std::vector<SearchPrompt> categories;
  for (Index i = 0; i < 10; ++i) categories.push_back({std::to_string(i), 10});
  const SearchProblem problem{
      .layers = layers,
      .prompts = categories,
      .ideal_speedup = speedup,
      .evaluate = [](const lazyllm::Preset& preset, Index prompt) -> Outcome {
        const auto& points = preset.schedule.points();
        if (points.empty() || prompt > 1) return {10, 10, 0};
        if (prompt == 1) return {10, 9, 0.1};
        return {10, points.front().layers_run < 6 ? 6 : 10, 0.4};
      },
  };
  const SearchResult result = llama::search(problem, {0.01, 0.05}, 400);
  const auto layer = [&](std::size_t i) { return result.best[i].preset.schedule.points().at(0).layers_run; };
  // 4 of 10 tokens are more than three times 5 %, though the average of 4 + 1 in 100 is not more than 5 %.
  for (const std::size_t i : {0U, 1U}) {
    CHECK(layer(i) >= 6);
    CHECK(result.best[i].agreement.category_loss.at("0") == 0);
    CHECK(result.best[i].agreement.category_loss.at("1") == doctest::Approx(0.1));
  }
  const SearchResult loose = llama::search(problem, {0.15}, 400);
  CHECK(loose.best[0].preset.schedule.points().at(0).layers_run < 6);
}

TEST_CASE("search: what cannot be searched is refused") {
  SearchProblem problem{.layers = 4, .prompts = {}, .ideal_speedup = speedup, .evaluate = {}};
  CHECK_THROWS_WITH_AS(llama::search(problem, {0.1}, 10), doctest::Contains("0 prompts"), std::invalid_argument);
  problem.prompts = {{"", 4}, {"", 0}};
  CHECK_THROWS_WITH_AS(llama::search(problem, {0.1}, 10), doctest::Contains("0 positions"), std::invalid_argument);
  problem.prompts = {{"", 4}, {"", 4}};
  CHECK_THROWS_WITH_AS(llama::search(problem, {0.1}, 1), doctest::Contains("at least 2"), std::invalid_argument);
}

TEST_CASE("summarize: tokens count alike within a category, and categories alike") {
  const std::vector<SearchPrompt> prompts = {{"a", 1}, {"b", 4}, {"a", 9}};
  const Agreement agreement = summarize(prompts, {{1, 0, 2.0}, {4, 1, 0.5}, {9, 8, 1.0}});
  CHECK(agreement.category_loss.at("a") == doctest::Approx(0.2));
  CHECK(agreement.category_loss.at("b") == doctest::Approx(0.75));
  CHECK(agreement.loss == doctest::Approx((0.2 + 0.75) / 2));
  CHECK(agreement.first_token_match == doctest::Approx(2.0 / 3));
  CHECK(agreement.kl == doctest::Approx(3.5 / 14));
  CHECK(agreement.prompts == 3);
  CHECK(agreement.tokens == 14);
  CHECK(summarize(prompts, {{1, 1, 0}}).category_loss.size() == 1);
  CHECK_THROWS_WITH_AS(summarize(prompts, {}), doctest::Contains("0 outcomes"), std::invalid_argument);
  CHECK_THROWS_WITH_AS(summarize(prompts, {{0, 0, 0}}), doctest::Contains("0 positions"), std::invalid_argument);
}
