#include "examples/calibrate/search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>

namespace llama {
namespace {

constexpr std::size_t max_cuts = 6;
constexpr double min_share = 0.01;  // of the prompt, after the last cut

constexpr std::array<Index, 3> tails = {32, 64, 128};
constexpr std::array<Index, 2> heads = {4, 16};

/// The most promising first: the screening takes it.
constexpr std::array scores = {
    "mean:32+heads:max+pool:15", "mean:32+heads:max+pool:31", "mean:32+pool:15",
    "mean:32+heads:max+pool:7",  "max:32+heads:max+pool:15",  "mean:128+heads:max+pool:15",
};

struct Cut {
  Index layer = 0;
  double weight = 1;  ///< keeps the share `x^weight`, where x is common to all cuts
};

/// A preset but for one number: how strongly it prunes.
struct Shape {
  lazyllm::AttentionScore score = lazyllm::parse_score(scores.front());
  std::vector<Cut> cuts = {};  // layers ascend
  Index protect_first = heads.front();
  Index protect_last = tails.front();
  bool deepest_first = false;  ///< decode steps revive at the last cut alone

  /// Null where less than `min_share` of the prompt would be left.
  std::optional<lazyllm::Preset> preset(double x, const SharedMembers& shared) const {
    std::vector<lazyllm::LayerKeep> points;
    double active = 1;
    for (const Cut& cut : cuts) {
      // Digits that people can read.
      const double keep = std::round(std::pow(x, cut.weight) * 1e3) / 1e3;
      active *= keep;
      if (active < min_share) return std::nullopt;
      if (keep < 1) points.push_back({cut.layer, keep});
    }
    lazyllm::Preset preset{.schedule = lazyllm::Schedule(std::move(points)),
                           .score = score,
                           .protect_first = protect_first,
                           .protect_last = protect_last,
                           .max_revived = shared.max_revived,
                           .decode_revived = shared.decode_revived,
                           .first_revived = shared.first_revived,
                           .continuations = shared.continuations,
                           .revive_from = shared.revive_from};
    if (!preset.decode_revived) share_rows(preset, shared.decode_rows - 1);
    return preset;
  }

 private:
  /// The pruning layers share the `rows` that decode steps revive: all of them, the last ones where there are fewer
  /// rows, or the last one alone.
  void share_rows(lazyllm::Preset& preset, Index rows) const {
    const auto& points = preset.schedule.points();
    const Index reviving = std::min({rows, Index{std::ssize(points)}, deepest_first ? 1 : rows});
    if (reviving > 0 && reviving < std::ssize(points)) {
      preset.revive_from = points[points.size() - static_cast<std::size_t>(reviving)].layers_run;
    }
    preset.decode_revived = reviving > 0 ? rows / reviving : 0;
  }
};

/// One early cut, and several cuts one after the other, from three depths on: equal ones, and lighter ones later.
std::vector<Shape> first_shapes(Index layers, const SharedMembers& shared) {
  std::vector<Shape> shapes;
  for (const double first : {1.0 / 6, 1.0 / 10, 1.0 / 4}) {
    for (const auto& weights : std::vector<std::vector<double>>{{1, 1, 0.5, 0.5}, {1}, {1, 1, 1, 1}, {1, 1}}) {
      Shape shape;
      shape.score = shared.score.value_or(shape.score);
      shape.protect_first = shared.protect_first.value_or(shape.protect_first);
      shape.protect_last = shared.protect_last.value_or(shape.protect_last);
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const double depth = first + static_cast<double>(i) / 7;
        const auto layer = std::max<Index>(1, std::lround(depth * static_cast<double>(layers)));
        if (layer >= layers || (i > 0 && layer <= shape.cuts.back().layer)) break;
        shape.cuts.push_back({layer, weights[i]});
      }
      if (shape.cuts.size() == weights.size()) shapes.push_back(std::move(shape));
    }
  }
  return shapes;
}

/// The preset of a shape that is just as fast as asked, or null where it cannot be.
std::optional<lazyllm::Preset> at_speed(const SearchProblem& problem, const Shape& shape, double speedup) {
  std::optional<lazyllm::Preset> found;
  double slow = 1;
  double fast = 0;
  for (int i = 0; i < 20; ++i) {
    const double x = (slow + fast) / 2;
    auto preset = shape.preset(x, problem.shared);
    const bool is_fast = !preset || problem.ideal_speedup(*preset) >= speedup;
    (is_fast ? fast : slow) = x;
    if (is_fast && preset) found = std::move(preset);
  }
  return found;
}

class Search {
 public:
  Search(const SearchProblem& problem, Index evaluations)
      : problem_(problem), allowed_(evaluations), left_(evaluations) {}

  std::vector<Candidate> run(const std::vector<double>& speedups) {
    std::vector<Candidate> found;
    std::vector<Shape> shapes = first_shapes(problem_.layers, problem_.shared);
    for (std::size_t i = 0; i < speedups.size(); ++i) {
      later_ = static_cast<Index>(speedups.size() - i - 1);
      used_ = 0;
      speedup_ = speedups[i];
      share(problem_.prompts);
      Best best = screened(shapes);
      climb(best);
      found.push_back(candidate(best));
      shapes.insert(shapes.begin(), best.shape);
    }
    return found;
  }

 private:
  struct Best {
    Shape shape;
    lazyllm::Preset preset;
    std::vector<Outcome> outcomes;  // of all prompts
    double kl = 0;                  // sum
  };

  /// Leaves as many evaluations as there is time for, and reserves for each later speedup as many as this one has had
  /// and has left: what one leaves is for the next ones. At least `least` are left for this one, and one for each
  /// prompt for each later one.
  void share(Index least) {
    left_ = problem_.affordable ? std::min(allowed_, problem_.affordable()) : allowed_;
    reserve_ = std::max(later_ * problem_.prompts, (used_ + left_) * later_ / (later_ + 1));
    left_ = std::max(left_, reserve_ + least);
  }

  /// To be called where a search ends early: says so if it is for lack of time, not of evaluations.
  void out_of_time() const {
    if (left_ < allowed_ && problem_.out_of_time) problem_.out_of_time();
  }

  /// The outcome for a prompt, or null if there is no evaluation left for it.
  const Outcome* outcome(const lazyllm::Preset& preset, Index prompt) {
    auto& outcomes = outcomes_[nlohmann::json(preset).dump()];
    outcomes.resize(static_cast<std::size_t>(problem_.prompts));
    auto& outcome = outcomes[static_cast<std::size_t>(prompt)];
    if (!outcome) {
      if (left_ <= reserve_) return nullptr;
      --left_;
      --allowed_;
      ++used_;
      outcome = problem_.evaluate(preset, prompt);
    }
    return &*outcome;
  }

  /// The best of `shapes` over all prompts. Half of what this speedup may take is kept for variants.
  Best screened(const std::vector<Shape>& shapes) {
    struct Entry {
      Best best;
      double kl = 0;
    };
    std::vector<Entry> entries;
    for (const Shape& shape : shapes) {
      if (const auto preset = at_speed(problem_, shape, speedup_)) entries.push_back({{shape, *preset, {}, 0}});
    }
    const Index all = problem_.prompts;
    Index seen = std::min<Index>(all, std::max<Index>(4, all / 4));
    // What is left pays for this round, for half as many entries on as many more prompts, and so on.
    const Index rounds = std::max<Index>(0, (left_ - reserve_ - all) / 2) / seen / 2;
    entries.resize(std::clamp<std::size_t>(static_cast<std::size_t>(rounds), 1, entries.size()));
    for (;; seen = std::min(2 * seen, all)) {
      if (entries.size() == 1) seen = all;
      for (Entry& entry : entries) {
        for (Index prompt = std::ssize(entry.best.outcomes); prompt < seen; ++prompt) {
          entry.best.outcomes.push_back(*outcome(entry.best.preset, prompt));
          entry.best.kl += entry.best.outcomes.back().kl;
        }
      }
      std::ranges::stable_sort(entries, {}, [](const Entry& entry) { return entry.best.kl; });
      if (seen == all) break;
      entries.resize((entries.size() + 1) / 2);
      share(all - seen);
      if (left_ - reserve_ < std::ssize(entries) * (std::min(2 * seen, all) - seen)) {
        out_of_time();
        entries.resize(1);
      }
    }
    report(entries.front().best);
    return entries.front().best;
  }

  /// Puts variants in the place of `best` that are better, until none is or no evaluation is left.
  void climb(Best& best) {
    for (bool improved = true; improved;) {
      improved = false;
      for (const Shape& shape : variants(best.shape)) {
        share(0);
        if (left_ <= reserve_) return out_of_time();
        auto better = trial(best, shape);
        if (!better) continue;
        best = std::move(*better);
        report(best);
        improved = true;
        break;
      }
    }
  }

  /// `shape` as the new best, or null if it is not better.
  std::optional<Best> trial(const Best& best, const Shape& shape) {
    const auto preset = at_speed(problem_, shape, speedup_);
    if (!preset) return std::nullopt;
    // The prompts that lose most come first.
    std::vector<Index> order(best.outcomes.size());
    std::iota(order.begin(), order.end(), 0);
    const auto kl_of = [&](Index prompt) { return best.outcomes[static_cast<std::size_t>(prompt)].kl; };
    std::ranges::stable_sort(order, [&](Index a, Index b) { return kl_of(a) > kl_of(b); });
    Best tried{shape, *preset, std::vector<Outcome>(order.size()), 0};
    double best_kl = 0;  // of the same prompts
    std::size_t seen = 0;
    for (const Index prompt : order) {
      const Outcome* const result = outcome(tried.preset, prompt);
      if (result == nullptr) return std::nullopt;
      tried.outcomes[static_cast<std::size_t>(prompt)] = *result;
      tried.kl += result->kl;
      best_kl += kl_of(prompt);
      ++seen;
      // From a third on it must be ahead.
      if (tried.kl >= best.kl || (3 * seen >= order.size() && tried.kl > best_kl)) return std::nullopt;
    }
    return tried;
  }

  std::vector<Shape> variants(const Shape& shape) const {
    std::vector<Shape> result;
    const auto add = [&](const auto& change) { change(result.emplace_back(shape)); };
    const auto is_free = [&](Index layer) {
      return layer >= 1 && layer < problem_.layers &&
             std::ranges::find(shape.cuts, layer, &Cut::layer) == shape.cuts.end();
    };
    const auto sorted = [](Shape& variant) { std::ranges::sort(variant.cuts, {}, &Cut::layer); };
    const SharedMembers& shared = problem_.shared;
    const std::string own = lazyllm::to_text(shape.score);
    for (const char* const score : scores) {
      if (!shared.score && score != own) add([&](Shape& variant) { variant.score = lazyllm::parse_score(score); });
    }
    for (const Index tail : tails) {
      if (!shared.protect_last && tail != shape.protect_last) add([&](Shape& variant) { variant.protect_last = tail; });
    }
    for (const Index head : heads) {
      if (!shared.protect_first && head != shape.protect_first)
        add([&](Shape& variant) { variant.protect_first = head; });
    }
    if (!shared.decode_revived) {
      add([&](Shape& variant) { variant.deepest_first = !shape.deepest_first; });
    }
    for (std::size_t i = 0; i < shape.cuts.size(); ++i) {
      if (shape.cuts.size() > 1) {
        for (const double factor : {0.6, 1.6}) {
          add([&](Shape& variant) { variant.cuts[i].weight *= factor; });
        }
      }
      for (const Index distance : {-1, 1, -2, 2}) {
        if (!is_free(shape.cuts[i].layer + distance)) continue;
        add([&](Shape& variant) {
          variant.cuts[i].layer += distance;
          sorted(variant);
        });
      }
    }
    if (shape.cuts.size() < max_cuts) {
      for (Index layer = shape.cuts.front().layer + 3; layer < problem_.layers; layer += 3) {
        if (!is_free(layer)) continue;
        add([&](Shape& variant) {
          variant.cuts.push_back({layer, 0.5});
          sorted(variant);
        });
      }
    }
    for (std::size_t i = 0; shape.cuts.size() > 1 && i < shape.cuts.size(); ++i) {
      add([&](Shape& variant) { variant.cuts.erase(variant.cuts.begin() + static_cast<std::ptrdiff_t>(i)); });
    }
    return result;
  }

  Candidate candidate(const Best& best) const {
    return {best.preset, problem_.ideal_speedup(best.preset), summarize(best.outcomes)};
  }

  void report(const Best& best) const {
    if (problem_.found) problem_.found(candidate(best));
  }

  const SearchProblem& problem_;
  double speedup_ = 1;                                                   // that is asked for now
  Index allowed_;                                                        // evaluations that may still be made
  Index left_;                                                           // of these, those that there is time for
  Index used_ = 0;                                                       // evaluations made for this speedup
  Index later_ = 0;                                                      // speedups after this one
  Index reserve_ = 0;                                                    // part of `left_` that is kept for these
  std::map<std::string, std::vector<std::optional<Outcome>>> outcomes_;  // by preset
};

/// The 95 % interval of the sum of `of` per position: prompts are drawn anew, with repetition.
template <class Of>
Interval bootstrap(std::span<const Outcome> outcomes, const Of& of) {
  constexpr std::size_t draws = 2000;
  std::mt19937 random(1);
  std::vector<double> means;
  for (std::size_t draw = 0; draw < draws; ++draw) {
    double sum = 0;
    double positions = 0;
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      const Outcome& outcome = outcomes[random() % outcomes.size()];
      sum += of(outcome);
      positions += static_cast<double>(outcome.positions);
    }
    means.push_back(sum / positions);
  }
  std::ranges::sort(means);
  return {means[draws / 40], means[draws - 1 - draws / 40]};
}

}  // namespace

Agreement summarize(std::span<const Outcome> outcomes) {
  if (outcomes.empty()) fail("there are 0 outcomes, at least 1 is needed");
  Agreement result{.prompts = std::ssize(outcomes)};
  double equal = 0;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const Outcome& outcome = outcomes[i];
    if (outcome.positions < 1) fail("outcome ", i, " has ", outcome.positions, " positions, at least 1 is needed");
    result.tokens += outcome.positions;
    result.kl += outcome.kl;
    equal += static_cast<double>(outcome.equal);
  }
  const auto tokens = static_cast<double>(result.tokens);
  result.kl /= tokens;
  result.top1 = equal / tokens;
  result.kl_interval = bootstrap(outcomes, [](const Outcome& outcome) { return outcome.kl; });
  result.top1_interval = bootstrap(outcomes, [](const Outcome& outcome) { return static_cast<double>(outcome.equal); });
  return result;
}

void check_search(const SearchProblem& problem, const std::vector<double>& speedups, Index evaluations) {
  if (problem.prompts < 1) fail("there are ", problem.prompts, " prompts to calibrate with, at least 1 is needed");
  double slower = 1;
  for (const double speedup : speedups) {
    if (!(speedup > slower)) fail(fmt::format("a speedup of {} is out of range: it must be above {}", speedup, slower));
    slower = speedup;
  }
  if (problem.shared.revive_from && !problem.shared.decode_revived) {
    fail("revive_from ", *problem.shared.revive_from, " needs decode_revived");
  }
  const Index least = problem.prompts * std::ssize(speedups);
  if (evaluations < least) {
    fail(evaluations, " evaluations are out of range, at least ", least, ", one for each prompt and speedup");
  }
  const std::vector<Shape> shapes = first_shapes(problem.layers, problem.shared);
  for (const double speedup : speedups) {
    if (std::ranges::none_of(shapes,
                             [&](const Shape& shape) { return at_speed(problem, shape, speedup).has_value(); })) {
      fail("a speedup of ", speedup, " is out of reach with a model of ", problem.layers,
           " layers, these prompts and the tokens that are always kept");
    }
  }
}

std::vector<Candidate> search(const SearchProblem& problem, const std::vector<double>& speedups, Index evaluations) {
  check_search(problem, speedups, evaluations);
  return Search(problem, evaluations).run(speedups);
}

}  // namespace llama
