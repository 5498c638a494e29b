#pragma once

#include <span>
#include <string>

#include "lazyllm/aux_cache/sequence.hpp"
#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/policy/selection.hpp"
#include "lazyllm/pruner/token_pruner.hpp"

namespace lazyllm {

/// What `Step` throws for one entry that does not fit. `begin` has then changed no sequence; where `advance` throws it,
/// the step must be aborted. After that a step without this entry can begin.
class entry_error : public invalid_argument {
 public:
  /// An error of entry `entry`.
  entry_error(const std::string& message, Index entry) : invalid_argument(message), entry_(entry) {}

  Index entry() const { return entry_; }  ///< number of the entry

 private:
  Index entry_;
};

namespace detail {

/// Throws the error of one entry, with all parts written one after the other.
template <class... Parts>
[[noreturn]] void fail_entry(Index entry, const Parts&... parts) {
  throw entry_error(message_of(parts...), entry);
}

}  // namespace detail

/// What one sequence contributes to a step. Both objects are the caller's. They stay where they are until the step has
/// ended, or been aborted or destroyed. `Step::begin` checks what it can see.
template <SequenceOfTokens Sequence, PrunesTokens Pruner>
struct StepEntry {
  static constexpr Index unlimited = Selection::unlimited;  ///< no limit for `max_rows`

  Sequence* sequence = nullptr;  ///< in no other entry or running step
  /// The same type for all entries. Its score is taken over when the step begins; its policy is asked from then on. All
  /// steps of one prompt have the same policy and score. Compare `last_queries` of the score with the `max_queries` of
  /// the blocks when a request is admitted: `Step` finds it in the first layer only.
  const Pruner* pruner = nullptr;
  /// Tokens to append; 0 only to go on with an unfinished prompt or decode step.
  Index new_tokens = 1;
  /// More of this prompt follows. Its rows run up to the first layer at which the policy may prune, and wait there;
  /// nothing is ranked and no row is returned. The entry that ends the prompt goes on as if it had come in one step.
  bool more = false;
  /// How many of the last tokens are returned after the last layer, from 0 to all that have not run yet. They are never
  /// pruned in this step. All chunks of a prompt give the same number: so many of a chunk's last tokens wait. Where all
  /// new tokens are returned, the step is a decode step: see `PrunePoint::decodes`.
  Index outputs = 1;
  /// The most rows of the sequence in one layer. What is beyond waits for the next steps, which may have no new tokens;
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
