#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "examples/llama/library.hpp"

/// \file
/// The search for schedules. It knows no model: what a preset costs and how it does comes from two functions.

namespace llama {

/// How well a pruned run agrees with the dense one on one prompt: at each position both continue the dense run's
/// tokens.
struct Outcome {
  Index positions = 0;  ///< greedy tokens of the dense run
  Index equal = 0;      ///< of these, how many are the pruned run's likeliest tokens, too
  double kl = 0;        ///< sum over the positions of KL(dense || pruned) of the next token's distribution, in nats
};

/// Holds a figure in 95 of 100 draws of as many prompts (bootstrap: prompts are drawn with replacement).
struct Interval {
  double low = 0;
  double high = 0;
};

/// Outcomes of one preset over prompts.
struct Agreement {
  double kl = 0;                ///< mean over the positions
  Interval kl_interval = {};    ///< of `kl`
  double top1 = 0;              ///< share of the positions whose likeliest tokens are equal
  Interval top1_interval = {};  ///< of `top1`
  Index prompts = 0;
  Index tokens = 0;  ///< positions
};

/// Throws `std::invalid_argument` if there is no outcome, or one without a position.
Agreement summarize(std::span<const Outcome> outcomes);

struct Candidate {
  lazyllm::Preset preset;
  double ideal_speedup = 1;
  Agreement agreement;
};

/// Members that all presets of a search share. Score, protection, and what decode steps revive are searched where they
/// are absent here.
struct SharedMembers {
  std::optional<lazyllm::AttentionScore> score = {};
  std::optional<Index> protect_first = {};
  std::optional<Index> protect_last = {};
  Index max_revived = lazyllm::recommended_max_revived;
  std::optional<Index> decode_revived = {};
  /// Where `decode_revived` is absent: the new token and the tokens that a decode step revives, which the pruning
  /// layers share. The host's kernels for AVX-512 multiply up to 6 rows in one pass: two are left for continuations.
  Index decode_rows = 4;
  std::optional<Index> first_revived = 32;  ///< in the first one, which misses most, and comes once an answer
  std::optional<Index> continuations = 2;   ///< most of what more of them would give
  std::optional<Index> revive_from = {};    ///< only with `decode_revived`
};

/// What to search in.
struct SearchProblem {
  Index layers = 0;
  Index prompts = 0;
  SharedMembers shared = {};
  /// Operations of the dense prefills over those of the pruned ones, known without running anything. Must not fall
  /// when a share falls.
  std::function<double(const lazyllm::Preset&)> ideal_speedup;
  /// Runs a prompt. Called at most once for a preset and a prompt.
  std::function<Outcome(const lazyllm::Preset&, Index prompt)> evaluate;
  /// How many more calls of `evaluate` there is time for; asked again and again. Null where time does not count.
  std::function<Index()> affordable = nullptr;
  /// Is told where time ends the search for a speedup before all is tried; may be null.
  std::function<void()> out_of_time = nullptr;
  /// Is told of each better preset; may be null.
  std::function<void(const Candidate&)> found = nullptr;
};

/// Throws `std::invalid_argument` where `search` refuses to start: no prompt, speedups that do not ascend from above 1
/// or cannot be had, fewer evaluations than prompts for each speedup, or a shared `revive_from` without
/// `decode_revived`. Runs nothing.
void check_search(const SearchProblem& problem, const std::vector<double>& speedups, Index evaluations);

/// Finds for each of `speedups` (ascending, above 1) a preset that is just as fast by `ideal_speedup` and has a small
/// KL over all prompts, with at most `evaluations` calls of `evaluate`, and about as many as are `affordable`: where
/// that is less, a speedup still gets one call for each prompt. Deterministic where time does not count. Throws as
/// `check_search`.
///
/// Presets are compared at equal ideal speedup. First schedules of several forms go through successive halving: all on
/// a few prompts, the better half on twice as many, and so on. Then variants of the best so far (a cut moved, added,
/// left out or weighed differently, another scorer or protection, revival at the last cut alone) take its place where
/// they are better. A trial ends as soon as it cannot win: most cost a few prompts only.
std::vector<Candidate> search(const SearchProblem& problem, const std::vector<double>& speedups, Index evaluations);

}  // namespace llama
