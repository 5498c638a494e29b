#pragma once

#include <span>

#include "lazyllm/aux_cache/sequence.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/policy/selection.hpp"
#include "lazyllm/pruner/token_pruner.hpp"

namespace lazyllm {

/// What one sequence contributes to a step. Both objects are the caller's. They stay where they are until the step has
/// ended, or been aborted or destroyed. `Step::begin` checks what it can see.
template <SequenceOfTokens Sequence, PrunesTokens Pruner>
struct StepEntry {
  static constexpr Index unlimited = Selection::unlimited;  ///< no limit for `max_rows`

  Sequence* sequence = nullptr;  ///< in no other entry or running step
  /// The same type for all entries. Its score is taken over when the step begins; its policy is asked from then on. All
  /// steps of one prompt have the same policy and score.
  const Pruner* pruner = nullptr;
  /// Tokens to append; 0 only to go on with an unfinished prompt.
  Index new_tokens = 1;
  /// More of this prompt follows. Its rows run up to the first layer at which the policy may prune, and wait there;
  /// nothing is ranked and no row is returned. The entry that ends the prompt goes on as if it had come in one step.
  bool more = false;
  /// How many of the last tokens are returned after the last layer, from 0 to all that have not run yet. They are never
  /// pruned in this step. All chunks of a prompt give the same number: so many of a chunk's last tokens wait.
  Index outputs = 1;
  /// The most rows of the sequence in one layer. What is beyond waits for the next steps, which have no new tokens;
  /// results stay those of one step. Revived tokens count: a decode step, too, may have more rows than this, and then
  /// returns none before a later step. While more rows wait, tokens that come back where the policy answers `all` are
  /// not counted. At least as many as score or are outputs: these run together.
  Index max_rows = unlimited;
  /// Tokens that the new ones may continue with, the best first, for policies that revive some of them: what
  /// `Continuations::find` answers. The same in all steps of a decode step that `max_rows` has cut. The caller's
  /// memory, valid until the step ends.
  std::span<const Position> continuations = {};
};

}  // namespace lazyllm
