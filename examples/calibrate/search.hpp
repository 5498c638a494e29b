#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "examples/llama/library.hpp"

/// \file
/// The search for schedules. It knows no model: what a preset costs and how it does comes from two functions.

namespace llama {

/// What the search knows of a prompt.
struct SearchPrompt {
  std::string category;  ///< kind of task; may be empty
  Index positions = 0;   ///< greedy tokens of the dense run
};

/// How well a pruned run agrees with the dense one on one prompt: at each position both continue the dense run's
/// tokens.
struct Outcome {
  Index positions = 0;  ///< greedy tokens of the dense run
  Index equal = 0;      ///< of these, how many from the first on the pruned run chooses, too, see `agree`
  double kl = 0;        ///< sum over the positions of KL(dense || pruned) of the next token's distribution, in nats
};

/// Outcomes of one preset over prompts.
struct Agreement {
  double loss = 0;  ///< mean over the categories
  /// Of each category, the share of the dense run's tokens that the pruned run does not reach: from the first that it
  /// would not have chosen on.
  std::map<std::string, double> category_loss = {};
  double first_token_match = 0;  ///< share of the prompts
  double kl = 0;                 ///< mean over the positions
  Index prompts = 0;
  Index tokens = 0;  ///< positions
};

/// `outcomes` are of the first prompts. Throws `std::invalid_argument` if there is none, or one without a position.
Agreement summarize(const std::vector<SearchPrompt>& prompts, const std::vector<Outcome>& outcomes);

struct Candidate {
  lazyllm::Preset preset;
  double ideal_speedup = 1;
  Agreement agreement;
};

/// What to search in.
struct SearchProblem {
  Index layers = 0;
  std::vector<SearchPrompt> prompts;  ///< categories well mixed: presets are compared by the first prompts, first
  /// Operations of the dense prefills over those of the pruned ones, known without running anything. Must not fall
  /// when a share falls.
  std::function<double(const lazyllm::Preset&)> ideal_speedup;
  /// Runs a prompt. Called at most once for a preset and a prompt.
  std::function<Outcome(const lazyllm::Preset&, Index prompt)> evaluate;
};

struct SearchResult {
  /// For each loss asked for the fastest within it, or, of several that are about as fast, the one that agrees best.
  /// Where even keeping everything loses more, that.
  std::vector<Candidate> best;
  std::vector<Candidate> front;  ///< ascending speed and loss: nothing that was found is faster at the same loss
};

/// Finds the fastest presets whose loss over all prompts is at most `losses` (ascending), and in no category more than
/// three times that or one token, with at most `evaluations` calls of `evaluate`. What it returns was evaluated on
/// every prompt. Deterministic. Throws `std::invalid_argument` if there is no prompt or position, or fewer evaluations
/// than prompts.
///
/// Presets are compared at equal ideal speedup, where the one that agrees better is the better one. First scorers, then
/// protected tails and layers of a single cut go through successive halving: all on a few prompts, the better half on
/// twice as many, and so on. Then, for one loss after the other, the survivors and variants of the best so far (a later
/// cut added, a cut moved, weighed differently or left out, another scorer or protection) are tried a little faster
/// than the best; one that stays within the loss is sped up as far as the loss allows and becomes the best. A trial
/// ends as soon as its loss is too high, so that most cost a few prompts only.
SearchResult search(const SearchProblem& problem, const std::vector<double>& losses, Index evaluations);

}  // namespace llama
