#pragma once

#include <functional>
#include <vector>

#include "lazyllm/lazyllm.hpp"

/// \file
/// The search for schedules. It knows no model: what a preset costs and how it does comes from two functions.

namespace lazyllm::llama {

/// How well a pruned run agrees with the dense one on one prompt: at each position both continue the dense run's
/// tokens.
struct Outcome {
  Index positions = 0;   ///< greedy tokens of the dense run
  Index mismatches = 0;  ///< of these, how many the pruned run would not have chosen
  bool first_match = false;
  double kl = 0;  ///< sum over the positions of KL(dense || pruned) of the next token's distribution, in nats
};

/// Outcomes of one preset over prompts.
struct Agreement {
  double loss = 0;               ///< mismatches / positions, of all prompts together
  double first_token_match = 0;  ///< share of the prompts
  double kl = 0;                 ///< mean over the positions
  Index prompts = 0;
  Index tokens = 0;  ///< positions
};

/// Throws `invalid_argument` if there is no position.
Agreement summarize(const std::vector<Outcome>& outcomes);

struct Candidate {
  Preset preset;
  double ideal_speedup = 1;
  Agreement agreement;
};

/// What to search in.
struct SearchProblem {
  Index layers = 0;
  std::vector<Index> positions;  ///< `Outcome::positions` of each prompt
  /// Operations of the dense prefills over those of the pruned ones, known without running anything. Must not fall
  /// when a share falls.
  std::function<double(const Preset&)> ideal_speedup;
  /// Runs a prompt. Called at most once for a preset and a prompt.
  std::function<Outcome(const Preset&, Index prompt)> evaluate;
};

struct SearchResult {
  /// For each loss asked for the fastest within it, or, of several that are about as fast, the one that agrees best.
  /// Where even keeping everything loses more, that.
  std::vector<Candidate> best;
  std::vector<Candidate> front;  ///< ascending speed and loss: nothing that was found is faster at the same loss
};

/// Finds the fastest presets whose loss over all prompts is at most `losses` (ascending), with at most `evaluations`
/// calls of `evaluate`. What it returns was evaluated on every prompt. Deterministic. Throws `invalid_argument` if
/// there is no prompt or position, or fewer evaluations than prompts.
///
/// Scorers and protected lengths are screened first, on some of the prompts, by how well they do at three single cuts.
/// Then, for one loss after the other, a climb from the best schedule so far: add one of up to three cuts, move one, or
/// tighten one while another is loosened or the scorer is exchanged; only what would be faster is tried, and a trial
/// ends as soon as its mismatches exceed the loss.
SearchResult search(const SearchProblem& problem, const std::vector<double>& losses, Index evaluations);

}  // namespace lazyllm::llama
