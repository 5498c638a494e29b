#include "examples/calibrate/search.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace llama {
namespace {

/// Single cuts are compared at this ideal speedup, around what the paper reports, or above where it costs nothing yet.
constexpr double screening_speedup = 2.5;
/// Presets whose speedups differ by less count as equally fast; the search goes by steps of this size.
constexpr double speed_step = 1.04;
constexpr Index most_steps = 60;  // 10.5x
constexpr std::size_t most_cuts = 3;
constexpr double least_share = 0.01;  // of the prompt, after the last cut
/// A category may lose this many times the loss that is asked for.
constexpr double category_factor = 3;

constexpr std::array<Index, 3> tails = {16, 32, 64};
constexpr std::array<Index, 2> heads = {4, 16};

struct Cut {
  Index layer = 0;
  double weight = 1;  ///< keeps the share `x^weight`, where x is common to all cuts
};

/// A preset but for one number: how strongly it prunes.
struct Shape {
  lazyllm::AttentionScore score;
  std::vector<Cut> cuts;  // layers ascend
  Index protect_first = heads[0];
  Index protect_last = tails[1];

  /// Null where less than `least_share` of the prompt would be left.
  std::optional<lazyllm::Preset> preset(double x) const {
    std::vector<lazyllm::LayerKeep> points;
    double active = 1;
    for (const Cut& cut : cuts) {
      // Digits that people can read.
      const double keep = std::round(std::pow(x, cut.weight) * 1e3) / 1e3;
      active *= keep;
      if (active < least_share) return std::nullopt;
      if (keep < 1) points.push_back({cut.layer, keep});
    }
    return lazyllm::Preset{lazyllm::Schedule(std::move(points)), score, protect_first, protect_last};
  }
};

/// The most promising first: a small budget screens only the beginning.
std::vector<lazyllm::AttentionScore> all_scores() {
  std::vector<lazyllm::AttentionScore> scores;
  for (const char* options : {"+layers+pool:5", "+pool:5", "+layers", "", "+pool:9", "+layers+pool:9"}) {
    for (const char* queries : {"max:16", "last", "mean:16", "max:32", "mean:32"}) {
      scores.push_back(lazyllm::parse_score(std::string(queries) + options));
    }
  }
  return scores;
}

class Search {
 public:
  Search(const SearchProblem& problem, Index evaluations)
      : problem_(problem), left_(evaluations), difficulty_(problem.prompts.size(), 0) {
    for (const SearchPrompt& prompt : problem.prompts) category_positions_[prompt.category] += prompt.positions;
  }

  SearchResult run(const std::vector<double>& losses) {
    // Keeping everything is the answer where nothing else is good enough.
    trial({}, 1);
    std::vector<Shape> finalists;
    if (problem_.layers > 1) finalists = screen();
    Best best;
    for (std::size_t i = 0; i < losses.size(); ++i) {
      // What one loss leaves is for the next.
      const auto others = static_cast<Index>(losses.size() - i - 1);
      reserve_ = left_ * others / (others + 1);
      climb(best, finalists, losses[i]);
    }
    return result(losses);
  }

 private:
  struct Record {
    lazyllm::Preset preset;
    std::vector<std::optional<Outcome>> outcomes;
  };

  struct Best {
    Shape shape = {};
    Index step = 0;  // its speedup is speed_step to this power
  };

  Index prompts() const { return std::ssize(problem_.prompts); }

  Record& record(const lazyllm::Preset& preset) {
    Record& record = records_[nlohmann::json(preset).dump()];
    if (record.outcomes.empty()) record = {preset, std::vector<std::optional<Outcome>>(problem_.prompts.size())};
    return record;
  }

  /// The outcome for a prompt, or null if there is no evaluation left for it.
  const Outcome* outcome(Record& record, Index prompt) {
    auto& outcome = record.outcomes[static_cast<std::size_t>(prompt)];
    if (!outcome) {
      if (left_ <= reserve_) return nullptr;
      --left_;
      outcome = problem_.evaluate(record.preset, prompt);
      difficulty_[static_cast<std::size_t>(prompt)] += outcome->positions - outcome->equal;
    }
    return &*outcome;
  }

  /// Whether a preset stays within `loss` even if all prompts that it has not seen agree.
  bool within(const Record& record, double loss) const {
    constexpr double rounding = 1e-9;
    std::map<std::string, double> lost;
    for (std::size_t i = 0; i < record.outcomes.size(); ++i) {
      const auto& outcome = record.outcomes[i];
      if (outcome) lost[problem_.prompts[i].category] += static_cast<double>(outcome->positions - outcome->equal);
    }
    double sum = 0;
    for (const auto& [category, tokens] : lost) {
      const auto positions = static_cast<double>(category_positions_.at(category));
      // A single token proves nothing about a category.
      if (tokens > std::max(1.0, category_factor * loss * positions) + rounding) return false;
      sum += tokens / positions;
    }
    return sum <= loss * static_cast<double>(category_positions_.size()) + rounding;
  }

  /// Whether `preset` stays within `loss` over all prompts; false, too, when the evaluations are used up.
  bool trial(const lazyllm::Preset& preset, double loss) {
    Record& tried = record(preset);
    // Prompts at which others have failed come first, so that a bad preset is found out soon.
    std::vector<Index> order(problem_.prompts.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater<>(),
                             [this](Index prompt) { return difficulty_[static_cast<std::size_t>(prompt)]; });
    for (const Index prompt : order) {
      if (!within(tried, loss) || outcome(tried, prompt) == nullptr) return false;
    }
    return within(tried, loss);
  }

  /// The preset of a shape that is just as fast as `speedup`, or null where it cannot be.
  std::optional<lazyllm::Preset> at_speed(const Shape& shape, double speedup) const {
    std::optional<lazyllm::Preset> found;
    double slow = 1;
    double fast = 0;
    for (int i = 0; i < 20; ++i) {
      const double x = (slow + fast) / 2;
      auto preset = shape.preset(x);
      const bool is_fast = !preset || problem_.ideal_speedup(*preset) >= speedup;
      (is_fast ? fast : slow) = x;
      if (is_fast && preset) found = std::move(preset);
    }
    return found;
  }

  std::vector<Shape> screen() {
    constexpr std::size_t survivors = 4;
    const auto layer = [&](double share) {
      return std::clamp<Index>(std::lround(share * static_cast<double>(problem_.layers)), 1, problem_.layers - 1);
    };
    std::vector<Shape> shapes;
    for (const lazyllm::AttentionScore& score : all_scores()) shapes.push_back({score, {{layer(0.25)}}});
    const std::vector<Shape> scorers = halve(std::move(shapes), survivors, left_ / 6);
    if (scorers.empty()) return {};
    shapes.clear();
    std::set<Index> layers;
    for (const double share : {0.25, 1.0 / 3, 1.0 / 6}) layers.insert(layer(share));
    for (const Shape& scorer : scorers) {
      for (const Index cut : layers) {
        for (const Index tail : tails) shapes.push_back({scorer.score, {{cut}}, heads[0], tail});
      }
    }
    std::vector<Shape> finalists = halve(std::move(shapes), survivors, left_ / 5);
    // A scorer may be the best for other cuts than those, and later cuts may be harmless where these are not.
    finalists.insert(finalists.end(), scorers.begin(), scorers.end());
    for (const double share : {0.5, 0.75}) finalists.push_back({scorers.front().score, {{layer(share)}}});
    return finalists;
  }

  /// The ideal speedup from `screening_speedup` on at which `shape` loses tokens, as it tells nothing where it does
  /// not; or the highest that it can have.
  double telling_speedup(const Shape& shape, Index seen) {
    double speedup = screening_speedup;
    for (double next = speedup;; next *= 1.2) {
      const auto preset = at_speed(shape, next);
      if (!preset) return speedup;
      speedup = next;
      if (rank(*preset, seen).first > 0) return speedup;
    }
  }

  /// The best of `shapes` at equal speed, the best first, with at most `budget` evaluations.
  std::vector<Shape> halve(std::vector<Shape> shapes, std::size_t survivors, Index budget) {
    struct Entry {
      Shape shape;
      lazyllm::Preset preset;
      std::pair<double, double> rank;
    };
    // Fewer than one of each category could choose what ruins another.
    Index seen = std::min(prompts(), std::max(prompts() / 8, std::ssize(category_positions_)));
    std::vector<Entry> entries;
    // Where prompts are short or layers few, nothing is that fast.
    for (double speedup = telling_speedup(shapes.front(), seen); entries.empty() && speedup > speed_step;
         speedup = std::sqrt(speedup)) {
      for (const Shape& shape : shapes) {
        if (const auto preset = at_speed(shape, speedup)) entries.push_back({shape, *preset, {}});
      }
    }
    // The first round costs one evaluation of each shape and prompt, each of about three more costs half of that.
    entries.resize(std::min(entries.size(), static_cast<std::size_t>(std::max<Index>(1, 2 * budget / (5 * seen)))));
    for (;; seen = std::min(2 * seen, prompts())) {
      for (Entry& entry : entries) entry.rank = rank(entry.preset, seen);
      std::ranges::stable_sort(entries, {}, &Entry::rank);
      if (entries.size() <= survivors || seen == prompts()) break;
      entries.resize(std::max(survivors, entries.size() / 2));
    }
    entries.resize(std::min(survivors, entries.size()));
    std::vector<Shape> best;
    for (Entry& entry : entries) best.push_back(std::move(entry.shape));
    return best;
  }

  /// Loss and, where that is equal, KL over the first prompts.
  std::pair<double, double> rank(const lazyllm::Preset& preset, Index seen) {
    Record& tried = record(preset);
    std::vector<Outcome> outcomes;
    for (Index prompt = 0; prompt < seen; ++prompt) {
      const Outcome* const fresh = outcome(tried, prompt);
      if (fresh == nullptr) break;
      outcomes.push_back(*fresh);
    }
    if (outcomes.empty()) return {1, 0};
    const Agreement agreement = summarize(problem_.prompts, outcomes);
    return {agreement.loss, agreement.kl};
  }

  /// Makes `best` as fast as finalists and variants allow within `loss`.
  void climb(Best& best, const std::vector<Shape>& finalists, double loss) {
    for (const Shape& shape : finalists) raise(best, shape, loss);
    for (bool improved = best.step > 0; improved && left_ > reserve_;) {
      improved = false;
      for (const Shape& shape : variants(best.shape, finalists)) improved |= raise(best, shape, loss);
    }
  }

  /// If `shape` is faster than `best` within `loss`, it becomes `best`, as fast as the loss allows. Returns whether
  /// that happened.
  bool raise(Best& best, const Shape& shape, double loss) {
    const auto is_good = [&](Index step) {
      const auto preset = at_speed(shape, std::pow(speed_step, step));
      return preset && trial(*preset, loss);
    };
    Index good = best.step + 1;
    if (good >= most_steps || !is_good(good)) return false;
    // The loss grows, by and large, with the speed.
    for (Index bad = most_steps; bad - good > 1;) {
      const Index middle = (good + bad) / 2;
      (is_good(middle) ? good : bad) = middle;
    }
    best = {shape, good};
    return true;
  }

  std::vector<Shape> variants(const Shape& shape, const std::vector<Shape>& finalists) const {
    std::vector<Shape> result;
    const auto add = [&](const auto& change) { change(result.emplace_back(shape)); };
    const auto find = [](Shape& variant, Index layer) {
      return std::ranges::lower_bound(variant.cuts, layer, {}, &Cut::layer);
    };
    const auto is_free = [&](Index layer) {
      return layer >= 1 && layer < problem_.layers &&
             std::ranges::find(shape.cuts, layer, &Cut::layer) == shape.cuts.end();
    };
    // Deep models: not every layer in one go; later variants move the cut by one or two.
    const Index stride = std::max<Index>(1, problem_.layers / 12);
    for (Index layer = shape.cuts[0].layer + stride; shape.cuts.size() < most_cuts && layer < problem_.layers;
         layer += stride) {
      if (!is_free(layer)) continue;
      for (const double weight : {0.5, 1.0}) {
        add([&](Shape& variant) {
          variant.cuts.insert(find(variant, layer), {layer, weight * shape.cuts.back().weight});
        });
      }
    }
    for (std::size_t i = 0; i < shape.cuts.size(); ++i) {
      for (const Index distance : {-2, -1, 1, 2}) {
        const Index layer = shape.cuts[i].layer + distance;
        if (!is_free(layer)) continue;
        add([&](Shape& variant) {
          variant.cuts[i].layer = layer;
          std::ranges::sort(variant.cuts, {}, &Cut::layer);
        });
      }
      if (shape.cuts.size() == 1) continue;
      for (const double factor : {0.6, 1.6}) {
        add([&](Shape& variant) { variant.cuts[i].weight *= factor; });
      }
      add([&](Shape& variant) { variant.cuts.erase(variant.cuts.begin() + static_cast<std::ptrdiff_t>(i)); });
    }
    for (const Index tail : tails) {
      if (tail != shape.protect_last) add([&](Shape& variant) { variant.protect_last = tail; });
    }
    for (const Index head : heads) {
      if (head != shape.protect_first) add([&](Shape& variant) { variant.protect_first = head; });
    }
    std::set<std::string> scores = {lazyllm::to_text(shape.score)};
    for (const Shape& finalist : finalists) {
      if (scores.insert(lazyllm::to_text(finalist.score)).second)
        add([&](Shape& variant) { variant.score = finalist.score; });
    }
    return result;
  }

  SearchResult result(const std::vector<double>& losses) const {
    struct Done {
      const Record* record;
      Candidate candidate;
    };
    std::vector<Done> done;
    for (const auto& [_, record] : records_) {
      std::vector<Outcome> outcomes;
      for (const auto& outcome : record.outcomes) {
        if (outcome) outcomes.push_back(*outcome);
      }
      if (std::ssize(outcomes) < prompts()) continue;
      const Agreement agreement = summarize(problem_.prompts, outcomes);
      done.push_back({&record, {record.preset, problem_.ideal_speedup(record.preset), agreement}});
    }
    std::ranges::stable_sort(done, {}, [](const Done& entry) {
      const Candidate& candidate = entry.candidate;
      return std::tuple(candidate.agreement.loss, -candidate.ideal_speedup, candidate.agreement.kl);
    });
    SearchResult result;
    for (const auto& [_, candidate] : done) {
      if (result.front.empty() || candidate.ideal_speedup > result.front.back().ideal_speedup) {
        result.front.push_back(candidate);
      }
    }
    for (const double loss : losses) {
      double fastest = 0;
      for (const auto& [record, candidate] : done) {
        if (within(*record, loss)) fastest = std::max(fastest, candidate.ideal_speedup);
      }
      // Ascending loss: the first that is about as fast agrees best. Even keeping everything may lose tokens where
      // rounding decides between two that are equally likely; then the first of all is the answer.
      const auto found = std::ranges::find_if(done, [&](const Done& entry) {
        return within(*entry.record, loss) && entry.candidate.ideal_speedup * speed_step > fastest;
      });
      result.best.push_back((found == done.end() ? done.front() : *found).candidate);
    }
    return result;
  }

  const SearchProblem& problem_;
  Index left_;                                       // evaluations
  Index reserve_ = 0;                                // of these, how many are for later
  std::vector<Index> difficulty_;                    // of each prompt: tokens lost over all evaluations
  std::map<std::string, Index> category_positions_;  // of all prompts of a category
  std::map<std::string, Record> records_;
};

}  // namespace

Agreement summarize(const std::vector<SearchPrompt>& prompts, const std::vector<Outcome>& outcomes) {
  struct Category {
    double positions = 0;
    double lost = 0;
  };
  std::map<std::string, Category> categories;
  Agreement result;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const Outcome& outcome = outcomes[i];
    if (outcome.positions < 1) fail("outcome ", i, " has ", outcome.positions, " positions, at least 1 is needed");
    Category& category = categories[prompts.at(i).category];
    category.positions += static_cast<double>(outcome.positions);
    category.lost += static_cast<double>(outcome.positions - outcome.equal);
    ++result.prompts;
    result.tokens += outcome.positions;
    result.first_token_match += outcome.equal > 0 ? 1 : 0;
    result.kl += outcome.kl;
  }
  if (outcomes.empty()) fail("there are 0 outcomes, at least 1 is needed");
  for (const auto& [name, category] : categories) {
    result.category_loss[name] = category.lost / category.positions;
    result.loss += result.category_loss[name] / static_cast<double>(categories.size());
  }
  result.first_token_match /= static_cast<double>(result.prompts);
  result.kl /= static_cast<double>(result.tokens);
  return result;
}

SearchResult search(const SearchProblem& problem, const std::vector<double>& losses, Index evaluations) {
  if (problem.prompts.empty()) fail("there are 0 prompts to calibrate with, at least 1 is needed");
  for (const SearchPrompt& prompt : problem.prompts) {
    if (prompt.positions < 1) fail("a prompt has ", prompt.positions, " positions, at least 1 is needed");
  }
  if (evaluations < std::ssize(problem.prompts)) {
    fail(evaluations, " evaluations are out of range, at least ", problem.prompts.size(), ", one for each prompt");
  }
  return Search(problem, evaluations).run(losses);
}

}  // namespace llama
