#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lazyllm/check/check_report.hpp"
#include "lazyllm/check/check_run.hpp"
#include "lazyllm/check/expect.hpp"
#include "lazyllm/check/ways_to_score.hpp"

namespace lazyllm::detail {

/// All checks of one engine.
template <Backend Context, class Make>
class EngineChecks {
 public:
  using Engine = std::remove_cvref_t<std::invoke_result_t<const Make&, Index, Index>>;
  static_assert(CheckedEngine<Engine, Context>, "lazyllm: what `make` returns lacks what CheckedEngine asks for");
  using Run = CheckRun<Context, Engine>;
  using Pruner = typename Run::Pruner;
  using Entry = typename Run::Entry;

  EngineChecks(Context& context, const Make& make, std::span<const std::int32_t> prompt, const CheckOptions& options)
      : context_(context),
        make_(make),
        tokens_(prompt.begin(), prompt.end()),
        options_(options),
        first_step_(std::ssize(prompt) - options.decode_steps),
        policy_(options.policy ? options.policy : AnyPolicy(half_twice)),
        pruner_(policy_, {.last_queries = options.last_queries}),
        keep_all_(KeepAll()) {
    check_optional_members<Engine, Context>();
    if (options.decode_steps < 2) {
      fail("check_engine: decode_steps ", options.decode_steps, " is out of range, at least 2");
    }
    if (options.sequences < 1 || options.sequences > 8) {
      fail("check_engine: sequences ", options.sequences, " is out of range 1 to 8");
    }
    if (first_step_ < 16) {
      fail("check_engine: ", prompt.size(), " tokens are out of range, at least ", 16 + options.decode_steps);
    }
    const Index layers = Run(context, make, {tokens_}).layers();
    if (layers < 3) fail("check_engine: ", layers, " layers are out of range, at least 3");
  }

  CheckReport report() {
    CheckReport report;
    const auto add = [&](const char* name, std::string (EngineChecks::*check)()) {
      try {
        report.results.push_back({name, true, (this->*check)()});
      } catch (const std::exception& failure) {
        report.results.push_back({name, false, failure.what()});
      }
    };
    add("keeping everything equals the dense path", &EngineChecks::dense);
    add("revived rows equal the dense path and see earlier keys only", &EngineChecks::revival);
    add("scores are attention probabilities", &EngineChecks::scores);
    add("K/V outside plan.keys() is not read", &EngineChecks::unused);
    add("work equals depths", &EngineChecks::work);
    add("a prompt in chunks equals the whole", &EngineChecks::chunks);
    add("a row budget changes nothing", &EngineChecks::budget);
    if (options_.sequences > 1) add("a batch equals single runs", &EngineChecks::batch);
    return report;
  }

 private:
  static Selection half_twice(const PrunePoint& point) {
    if (point.layers_run != point.layers / 3 && point.layers_run != 2 * point.layers / 3) return {};
    return {.kind = Selection::Kind::top_k, .k = keep_count(0.5, point.active_tokens)};
  }

  Run fresh() { return Run(context_, make_, {tokens_}); }

  void expect_dense(std::span<const float> logits, Index tokens) {
    const std::vector<float> dense = fresh().dense(tokens);
    expect_finite(dense, in_words("dense path, ", tokens, " tokens"));
    expect_equal(logits, dense, options_.tolerance, in_words("logits after ", tokens, " tokens"));
  }

  std::string dense() {
    Run run = fresh();
    expect_dense(run.feed(keep_all_, first_step_), first_step_);
    for (Index n = first_step_ + 1; n <= std::ssize(tokens_); ++n) expect_dense(run.feed(keep_all_, 1), n);
    return in_words(first_step_, " tokens in one step, then ", options_.decode_steps, " one by one");
  }

  std::string revival() {
    // A prefix of the prompt and the last token are kept. The last token is dropped below. So each kept token has seen
    // all K/V before it, and revived tokens must give what the dense path gives.
    const Pruner prefix([this](const PrunePoint& point) {
      const Index kept = first_step_ * (point.layers - point.layers_run) / point.layers;
      return Selection{.kind = Selection::Kind::top_k, .k = 1, .protect_first = kept};
    });
    Run run = fresh();
    run.feed(prefix, first_step_);
    run.sequence().truncate(first_step_ - 1);
    expect_dense(run.feed(keep_all_, 1), first_step_);
    const Index revived = run.stats().revived();
    expect_dense(run.feed(keep_all_, 1), first_step_ + 1);

    // The odd tokens are revived between even tokens that have K/V already. The first revived one must not see later
    // keys: poison there changes nothing in its row.
    const auto first_revived = [this](bool poisoned) {
      std::vector<std::uint8_t> even(tokens_.size());
      for (std::size_t i = 0; i < even.size(); i += 2) even[i] = 1;
      const Pruner holes([&even](const PrunePoint& point) {
        if (point.layers_run > 1) return Selection{};
        return Selection{.kind = Selection::Kind::top_k, .k = 1, .protect_mask = even};
      });
      Run run = fresh();
      run.feed(holes, first_step_);
      std::vector<float> hidden;
      run.before_attend = [&](const LayerPlan& plan) {
        if (poisoned && plan.layer() == 1) run.poison(1, [&](Position p) { return p > 1 && even[to_size(p)] != 0; });
      };
      run.after_attend = [&](const LayerPlan& plan) {
        if (plan.layer() == 1) hidden = run.hidden(plan);
      };
      try {
        run.feed(keep_all_, 1);
      } catch (const error&) {  // of the rows that do see the poison
      }
      hidden.resize(to_size(run.engine().hidden_size));
      return hidden;
    };
    expect_equal(first_revived(true), first_revived(false), options_.tolerance, "a revived row sees later keys");
    return in_words(revived, " rows came back");
  }

  std::string scores() {
    Run run = fresh();
    const Pruner every_layer(policy_, {.last_queries = options_.last_queries, .over_layers = true});
    Index compared = 0, new_tokens = first_step_;
    run.after_attend = [&](const LayerPlan& plan) {
      if (!plan.scores_wanted()) return;
      for (const AttentionScore& score :
           {AttentionScore{}, AttentionScore{.over_heads = Reduce::max},
            AttentionScore{.last_queries = options_.last_queries},
            AttentionScore{.last_queries = options_.last_queries, .over_rows = Reduce::max}}) {
        compare_scores(run, plan, score_window(score, plan, 0, new_tokens));
        ++compared;
      }
    };
    run.feed(every_layer, first_step_);
    for (new_tokens = 1; run.sequence().length() < std::ssize(tokens_);) run.feed(every_layer, 1);
    if (compared == 0) disagree("the policy asks for no scores");
    return in_words(compared, " windows of up to ", options_.last_queries, " rows");
  }

  static const char* name(Reduce reduce) { return reduce == Reduce::max ? "max" : "mean"; }

  void compare_scores(Run& run, const LayerPlan& plan, const ScoreWindow& window) {
    const auto ways = ways_to_score(run, plan, window);
    if (ways.size() < 2) {
      disagree(
          "nothing to compare: the engine hands over no `probabilities`, and its block has one way to have scores");
    }
    for (std::size_t i = 1; i < ways.size(); ++i) {
      expect_equal(ways[i].second, ways[0].second, options_.score_tolerance,
                   in_words("layer ", plan.layer(), ", ", name(window.over_rows), " of ", window.rows, " rows, ",
                            name(window.over_heads), " of the heads, ", ways[i].first, " against ", ways[0].first));
    }
  }

  std::string unused() {
    std::vector<std::vector<float>> expected;
    for (const bool poisoned : {false, true}) {
      Run run = fresh();
      std::size_t layers_seen = 0;
      for (Index layer = 0; poisoned && layer < run.layers(); ++layer) run.poison(layer, [](Position) { return true; });
      run.before_attend = [&](const LayerPlan& plan) {
        // Only in the last step: an earlier one leaves K/V unread that a later step reads.
        if (!poisoned || run.sequence().length() < std::ssize(tokens_)) return;
        run.poison(plan.layer(), [&](Position p) { return !std::ranges::binary_search(plan.keys(), p); });
      };
      run.after_attend = [&](const LayerPlan& plan) {
        if (!poisoned) return expected.push_back(run.hidden(plan));
        const std::string where = in_words("layer ", plan.layer(), ", ", run.sequence().length(), " tokens");
        expect_finite(run.hidden(plan), where);
        expect_equal(run.hidden(plan), expected[layers_seen++], options_.tolerance, where);
      };
      run.feed(pruner_, first_step_);
      while (run.sequence().length() < std::ssize(tokens_)) run.feed(pruner_, 1);
    }
    return in_words(expected.size(), " layers with and without poison");
  }

  std::string work() {
    Run run = fresh();
    std::vector<std::vector<Index>> computed(to_size(run.layers()), std::vector<Index>(tokens_.size()));
    for (Index layer = 0; layer < run.layers(); ++layer) run.poison(layer, [](Position) { return true; });
    run.after_attend = [&](const LayerPlan& plan) {
      for (const Position p : plan.positions()) ++computed[to_size(plan.layer())][to_size(p)];
    };
    const auto expect_depths = [&] {
      for (Index layer = 0; layer < run.layers(); ++layer) {
        for (Index t = 0; t < run.sequence().length(); ++t) {
          const Index times = computed[to_size(layer)][to_size(t)];
          if (times != (layer < run.sequence().depths()[to_size(t)])) {
            disagree("position ", t, " ran ", times, " times through layer ", layer);
          }
        }
      }
    };
    run.feed(pruner_, first_step_);
    expect_depths();
    const double share = computed_share(run.sequence().depths(), run.layers());
    while (run.sequence().length() + 1 < std::ssize(tokens_)) run.feed(pruner_, 1);
    expect_depths();
    expect_finite(run.feed(keep_all_, 1), "a step that keeps everything, after steps that pruned");
    expect_depths();
    return in_words(100 * share, " % of the prompt ran in the first step, all of it once in the end");
  }

  /// The logits of all steps that have some, for a prompt in chunks under a row budget.
  std::vector<float> answer(Index chunk, Index max_rows) {
    Run run = fresh();
    std::vector<float> all;
    const auto keep = [&](const std::vector<float>& logits) { all.insert(all.end(), logits.begin(), logits.end()); };
    for (Index first = 0; first < first_step_; first += chunk) {
      keep(run.feed(pruner_, std::min(chunk, first_step_ - first), first + chunk < first_step_, max_rows));
    }
    while (run.sequence().unfinished()) keep(run.feed(pruner_, 0, false, max_rows));
    while (run.sequence().length() < std::ssize(tokens_)) keep(run.feed(pruner_, 1));
    return all;
  }

  void expect_same_answer(Index chunk, Index max_rows) {
    expect_equal(
        answer(chunk, max_rows), answer(first_step_, Entry::unlimited), options_.tolerance,
        max_rows == Entry::unlimited ? in_words("chunks of ", chunk) : in_words("at most ", max_rows, " rows"));
  }

  std::string chunks() {
    const Index sizes[] = {1, 7, (first_step_ + 1) / 2};
    for (const Index chunk : sizes) expect_same_answer(chunk, Entry::unlimited);
    return in_words("chunks of ", sizes[0], ", ", sizes[1], " and ", sizes[2], " tokens");
  }

  std::string budget() {
    const Index window = std::min(options_.last_queries, first_step_), third = std::max(first_step_ / 3, window);
    for (const Index max_rows : {window, third}) expect_same_answer(first_step_, max_rows);
    return in_words("at most ", window, " and ", third, " rows in one layer");
  }

  std::string batch() {
    const Index count = options_.sequences;
    std::vector<std::vector<std::int32_t>> tokens(to_size(count), tokens_);
    for (Index s = 1; s < count; ++s)
      std::rotate(tokens[to_size(s)].begin(), tokens[to_size(s)].begin() + s, tokens[to_size(s)].end());
    // The prompt of the last sequence that is pruned comes in two chunks: in the first step it has no rows in the deep
    // layers, and in the second one the others decode.
    const Index in_chunks = (count - 1) / 2 * 2;
    const auto entry = [&](Index s, Index step) {
      const Index prompt = first_step_ - s, chunk = s == in_chunks ? prompt / 2 : prompt;
      Entry entry{.pruner = s % 2 == 0 ? &pruner_ : &keep_all_, .new_tokens = 1};
      if (step == 0) entry.new_tokens = chunk;
      if (step == 1 && chunk < prompt) entry.new_tokens = prompt - chunk;
      entry.more = step == 0 && chunk < prompt;
      return entry;
    };
    Run together(context_, make_, tokens);
    std::vector<std::vector<float>> logits;
    for (Index step = 0; step <= options_.decode_steps; ++step) {
      std::vector<Entry> entries;
      for (Index s = 0; s < count; ++s) entries.push_back(entry(s, step));
      logits.push_back(together.feed(entries));
    }
    std::vector<std::span<const float>> rest(logits.begin(), logits.end());  // of each step, not compared yet
    for (Index s = 0; s < count; ++s) {
      Run alone(context_, make_, {tokens[to_size(s)]}, s);
      for (Index step = 0; step <= options_.decode_steps; ++step) {
        Entry single = entry(s, step);
        const auto expected = alone.feed(std::span(&single, 1));
        std::span<const float>& all = rest[to_size(step)];
        const std::size_t size = std::min(expected.size(), all.size());
        expect_equal(all.first(size), expected, options_.tolerance, in_words("sequence ", s, ", step ", step));
        all = all.subspan(size);
      }
    }
    return in_words(count, " sequences, ", options_.decode_steps + 1, " steps, one prompt in chunks");
  }

  Context& context_;
  const Make& make_;
  std::vector<std::int32_t> tokens_;
  CheckOptions options_;
  Index first_step_;  // tokens of the first step
  AnyPolicy policy_;
  Pruner pruner_;
  Pruner keep_all_;
};

}  // namespace lazyllm::detail
