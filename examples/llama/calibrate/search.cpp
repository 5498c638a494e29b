#include "examples/llama/calibrate/search.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

namespace lazyllm::llama {
namespace {

/// Shares of the prompt that may be active after a cut.
constexpr std::array levels = {0.8,  0.7, 0.6,  0.5,  0.4,  0.3,  0.25, 0.2,  0.15,
                               0.12, 0.1, 0.08, 0.06, 0.05, 0.04, 0.03, 0.02, 0.01};
constexpr Index level_count = std::ssize(levels);
constexpr std::size_t most_cuts = 3;
/// A step must be faster by this factor, else it is not worth its trial.
constexpr double least_gain = 1.005;

struct Cut {
  Index layer = 0;
  Index level = 0;
};

/// What a preset has beside its schedule.
struct Setting {
  AttentionScore score;
  Index protect_first = 0;
  Index protect_last = 1;
};

struct State {
  Setting setting;
  std::vector<Cut> cuts = {};  // layers and levels both ascend
  double speedup = 1;

  Preset preset() const {
    std::vector<LayerKeep> points;
    double active = 1;
    for (const Cut& cut : cuts) {
      const double share = levels[static_cast<std::size_t>(cut.level)];
      points.push_back({cut.layer, std::round(share / active * 1e4) / 1e4});
      active = share;
    }
    return {.schedule = Schedule(std::move(points)),
            .score = setting.score,
            .protect_first = setting.protect_first,
            .protect_last = setting.protect_last};
  }

  State without(std::size_t cut) const {
    State state = *this;
    state.cuts.erase(state.cuts.begin() + static_cast<std::ptrdiff_t>(cut));
    return state;
  }
};

/// The most promising first: a small budget screens only the beginning.
std::vector<Setting> all_settings() {
  std::vector<Setting> settings;
  for (const auto& [first, last] : {std::pair<Index, Index>{4, 16}, {4, 64}, {0, 1}}) {
    for (const char* score : {"mean:16", "last", "mean:32", "mean:8", "last+pool:5", "mean:16+pool:5", "max:16",
                              "max:32+pool:5", "last+layers", "mean:16+layers", "mean:32+layers+pool:5", "mean:64"}) {
      settings.push_back({AttentionScore::parse(score), first, last});
    }
  }
  return settings;
}

class Search {
 public:
  Search(const SearchProblem& problem, Index evaluations)
      : problem_(problem),
        left_(evaluations),
        positions_(std::accumulate(problem.positions.begin(), problem.positions.end(), Index{0})),
        mismatches_(problem.positions.size(), 0) {}

  SearchResult run(const std::vector<double>& losses) {
    // Keeping everything is the answer where nothing else is good enough.
    State best{.setting = {}};
    trial(best.preset(), 1);
    screen();
    best.setting = settings_.front();
    for (std::size_t i = 0; i < losses.size(); ++i) {
      // The first climb starts from nothing and needs most; each later one starts where the last has ended.
      reserve_ = i + 1 < losses.size() ? left_ / 2 : 0;
      climb(best, losses[i]);
      // Other scorers may do the same with fewer losses.
      for (const Setting& setting : settings_) {
        State same = best;
        same.setting = setting;
        if (problem_.ideal_speedup(same.preset()) * least_gain >= best.speedup) trial(same.preset(), losses[i]);
      }
    }
    return result(losses);
  }

 private:
  struct Record {
    Preset preset;
    std::vector<std::optional<Outcome>> outcomes;
  };
  using Records = std::map<std::string, Record>;

  Index prompts() const { return std::ssize(problem_.positions); }

  Record& record(const Preset& preset) {
    Record& record = records_[nlohmann::json(preset).dump()];
    if (record.outcomes.empty()) record = {preset, std::vector<std::optional<Outcome>>(problem_.positions.size())};
    return record;
  }

  /// The outcome for a prompt, or null if there is no evaluation left for it.
  const Outcome* outcome(Record& record, Index prompt) {
    auto& outcome = record.outcomes[static_cast<std::size_t>(prompt)];
    if (!outcome) {
      if (left_ <= reserve_) return nullptr;
      --left_;
      outcome = problem_.evaluate(record.preset, prompt);
      mismatches_[static_cast<std::size_t>(prompt)] += outcome->mismatches;
    }
    return &*outcome;
  }

  /// Whether `preset` loses at most `loss` over all prompts; false, too, when the evaluations are used up.
  bool trial(const Preset& preset, double loss) {
    Record& tried = record(preset);
    const auto allowed = static_cast<Index>(std::floor(loss * static_cast<double>(positions_) + 1e-9));
    Index mismatches = 0;
    for (const auto& known : tried.outcomes) mismatches += known ? known->mismatches : 0;
    // Prompts at which others have failed come first, so that a bad preset is found out soon.
    std::vector<Index> order(problem_.positions.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater<>(),
                             [this](Index prompt) { return mismatches_[static_cast<std::size_t>(prompt)]; });
    for (const Index prompt : order) {
      if (mismatches > allowed) return false;
      if (tried.outcomes[static_cast<std::size_t>(prompt)]) continue;
      const Outcome* const fresh = outcome(tried, prompt);
      if (fresh == nullptr) return false;
      mismatches += fresh->mismatches;
    }
    return mismatches <= allowed;
  }

  /// Leaves in `settings_` the best few, the best first: three rounds, each at another cut, after which the worse half
  /// goes.
  void screen() {
    struct Screened {
      Setting setting;
      double loss = 0;
      double kl = 0;
    };
    const Index some = (prompts() + 3) / 4;
    reserve_ = left_ / 2;
    std::vector<Screened> screened;
    for (const Setting& setting : all_settings()) screened.push_back({setting});
    // All rounds together take less than twice the first.
    screened.resize(
        static_cast<std::size_t>(std::clamp<Index>((left_ - reserve_) / (2 * some), 1, std::ssize(screened))));
    const Index last = problem_.layers - 1;
    for (const auto& [layer, share] :
         {std::pair{problem_.layers / 2, 0.1}, {problem_.layers / 3, 0.2}, {2 * problem_.layers / 3, 0.05}}) {
      if (last < 1) break;
      for (Screened& entry : screened) {
        Record& tried = record({.schedule = {{std::clamp<Index>(layer, 1, last), share}},
                                .score = entry.setting.score,
                                .protect_first = entry.setting.protect_first,
                                .protect_last = entry.setting.protect_last});
        for (Index i = 0; i < some; ++i) {
          // Spread over the prompts, which come from several data sets in turn.
          const Outcome* const fresh = outcome(tried, i * prompts() / some);
          if (fresh == nullptr) continue;
          entry.loss += static_cast<double>(fresh->mismatches) / static_cast<double>(fresh->positions);
          entry.kl += fresh->kl;
        }
      }
      std::ranges::stable_sort(screened, {}, [](const Screened& entry) { return std::pair(entry.loss, entry.kl); });
      screened.resize((screened.size() + 1) / 2);
    }
    for (const Screened& entry : screened) settings_.push_back(entry.setting);
  }

  /// Steps from `best` to faster schedules that lose at most `loss`, until none is found.
  void climb(State& best, double loss) {
    const Index layers = problem_.layers;
    for (bool improved = true; improved && left_ > reserve_;) {
      improved = false;
      if (best.cuts.size() < most_cuts) improved |= insert(best, best, layers / 2, layers, loss);
      for (std::size_t i = 0; i < best.cuts.size(); ++i) {
        improved |= insert(best, best.without(i), best.cuts[i].layer, layers, loss);
      }
      for (std::size_t i = 0; i < best.cuts.size(); ++i) {
        for (std::size_t j = 0; j < best.cuts.size(); ++j) {
          if (i == j) continue;
          for (const Cut& looser : {Cut{0, -1}, Cut{1, 0}}) {
            State base = best;
            base.cuts[j].layer += looser.layer;
            base.cuts[j].level += looser.level;
            const Index layer = best.cuts[i].layer;
            base = base.without(i);
            if (is_valid(base)) improved |= insert(best, base, layer, 2, loss);
          }
        }
      }
      for (const Setting& setting : settings_) {
        for (std::size_t i = 0; i < best.cuts.size(); ++i) {
          State base = best.without(i);
          base.setting = setting;
          improved |= insert(best, base, best.cuts[i].layer, 0, loss);
        }
      }
    }
  }

  bool is_valid(const State& state) const {
    Cut previous{.layer = 0, .level = -1};
    for (const Cut& cut : state.cuts) {
      if (cut.layer <= previous.layer || cut.level <= previous.level) return false;
      previous = cut;
    }
    return previous.layer < problem_.layers && previous.level < level_count;
  }

  /// Adds a cut to `base` at a layer at most `reach` from `centre`. Where that is faster than `best` within `loss`, it
  /// becomes `best`, as tight as the loss allows. Returns whether that happened.
  bool insert(State& best, State base, Index centre, Index reach, double loss) {
    bool improved = false;
    // Deep models: not every layer in one go; later steps move the cut by one or two.
    const Index stride = reach > 2 ? std::max<Index>(1, problem_.layers / 16) : 1;
    for (Index distance = 0; distance <= reach; distance += stride) {
      improved |= insert_at(best, base, centre - distance, loss);
      if (distance > 0) improved |= insert_at(best, base, centre + distance, loss);
    }
    return improved;
  }

  bool insert_at(State& best, State next, Index layer, double loss) {
    if (layer < 1 || layer >= problem_.layers) return false;
    const auto place = std::ranges::lower_bound(next.cuts, layer, {}, &Cut::layer);
    if (place != next.cuts.end() && place->layer == layer) return false;
    const Index above = place == next.cuts.begin() ? -1 : std::prev(place)->level;
    const Index below = place == next.cuts.end() ? level_count : place->level;
    const auto cut = next.cuts.insert(place, {layer, above});
    const auto is_good = [&](Index level) {
      cut->level = level;
      return trial(next.preset(), loss);
    };
    const auto is_faster = [&](Index level) {
      cut->level = level;
      return problem_.ideal_speedup(next.preset()) >= best.speedup * least_gain;
    };
    Index good = above + 1;
    while (good < below && !is_faster(good)) ++good;
    if (good >= below || !is_good(good)) return false;
    // The loss grows, by and large, as fewer tokens stay.
    for (Index bad = below; bad - good > 1;) {
      const Index middle = (good + bad) / 2;
      (is_good(middle) ? good : bad) = middle;
    }
    cut->level = good;
    next.speedup = problem_.ideal_speedup(next.preset());
    best = next;
    return true;
  }

  SearchResult result(const std::vector<double>& losses) const {
    std::vector<Candidate> done;
    for (const auto& [_, record] : records_) {
      std::vector<Outcome> outcomes;
      for (const auto& outcome : record.outcomes) {
        if (outcome) outcomes.push_back(*outcome);
      }
      if (std::ssize(outcomes) < prompts()) continue;
      done.push_back({record.preset, problem_.ideal_speedup(record.preset), summarize(outcomes)});
    }
    const auto by_loss = [](const Candidate& candidate) {
      return std::tuple(candidate.agreement.loss, -candidate.ideal_speedup, candidate.agreement.kl);
    };
    std::ranges::stable_sort(done, {}, by_loss);
    SearchResult result;
    for (const Candidate& candidate : done) {
      if (result.front.empty() || candidate.ideal_speedup > result.front.back().ideal_speedup) {
        result.front.push_back(candidate);
      }
    }
    for (const double loss : losses) {
      const auto over = std::ranges::find_if(
          result.front, [loss](const Candidate& candidate) { return candidate.agreement.loss > loss + 1e-12; });
      // Even keeping everything may lose tokens where rounding decides between two that are equally likely.
      const Candidate& fastest = over == result.front.begin() ? *over : *std::prev(over);
      const auto better = [&fastest](const Candidate& a, const Candidate& b) {
        const auto rank = [&fastest](const Candidate& candidate) {
          const bool slower = candidate.ideal_speedup * least_gain < fastest.ideal_speedup;
          return std::tuple(slower, candidate.agreement.loss, candidate.agreement.kl);
        };
        return rank(a) < rank(b);
      };
      result.best.push_back(*std::ranges::min_element(done, better));
    }
    return result;
  }

  const SearchProblem& problem_;
  Index left_;         // evaluations
  Index reserve_ = 0;  // of these, how many are for later
  Index positions_;
  std::vector<Index> mismatches_;  // of each prompt, over all evaluations
  std::vector<Setting> settings_;
  Records records_;
};

}  // namespace

Agreement summarize(const std::vector<Outcome>& outcomes) {
  Agreement result;
  double mismatches = 0;
  for (const Outcome& outcome : outcomes) {
    ++result.prompts;
    result.tokens += outcome.positions;
    mismatches += static_cast<double>(outcome.mismatches);
    result.first_token_match += outcome.first_match ? 1 : 0;
    result.kl += outcome.kl;
  }
  if (result.tokens < 1) detail::fail("the outcomes have ", result.tokens, " positions, at least 1 is needed");
  result.loss = mismatches / static_cast<double>(result.tokens);
  result.first_token_match /= static_cast<double>(result.prompts);
  result.kl /= static_cast<double>(result.tokens);
  return result;
}

SearchResult search(const SearchProblem& problem, const std::vector<double>& losses, Index evaluations) {
  if (problem.positions.empty()) detail::fail("there are 0 prompts to calibrate with, at least 1 is needed");
  for (const Index positions : problem.positions) {
    if (positions < 1) detail::fail("a prompt has ", positions, " positions, at least 1 is needed");
  }
  if (evaluations < std::ssize(problem.positions)) {
    detail::fail(evaluations, " evaluations are out of range, at least ", problem.positions.size(),
                 ", one for each prompt");
  }
  return Search(problem, evaluations).run(losses);
}

}  // namespace lazyllm::llama
