#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "lazyllm/aux_cache/running_sequence.hpp"
#include "lazyllm/aux_cache/sequence.hpp"
#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/layer/step_entry.hpp"
#include "lazyllm/policy/selection.hpp"
#include "lazyllm/pruner/token_pruner.hpp"

namespace lazyllm::detail {

/// One sequence of a running step. A prompt runs in *stages*: a stage ends at a layer after which tokens may be ranked.
/// Within a stage, rows run in *slices* in order of position; the last slice ranks. Its *tail*, the tokens that score
/// or are outputs, runs in the last slice as a whole.
template <SequenceOfTokens Sequence, PrunesTokens Pruner>
struct StepMember {
  using Aux = typename Sequence::aux_type;

  StepEntry<Sequence, Pruner> entry;
  typename Pruner::score_type score;  // as the step began: the tail of each slice depends on it
  RunningSequence<Aux> running;
  Index layers = 0;
  Index tokens = 0;                       // of the sequence, the new ones included
  Index prompt_tokens = 0;                // of the prompt or decode step, all its chunks together
  Index stage = 0;                        // layer at which the present stage begins
  Index limit = 0;                        // tokens from this position on take no part in this step
  Index active = 0;                       // keys in the layer to run now
  Index event = 0;                        // layers that have run when the batch of this sequence may change next
  Selection selection = {};               // what stays active at the event
  bool waits = false;                     // at the event
  bool last_slice = false;                // of its stage: can be ranked
  bool joined = false;                    // has keys in the layer to run now
  bool new_stage = false;                 // the stage began in this step; its rows exceed max_rows
  std::vector<Position> stage_keys = {};  // of a new stage
  typename UnfinishedPrompt<Aux>::Sums stage_sums = {};

  /// Appends the new tokens and checks the entry's options. Throws and changes nothing.
  StepMember(const StepEntry<Sequence, Pruner>& entry_, Index number)
      : entry(entry_), score(entry.pruner->score()), running(*entry.sequence, entry.new_tokens, number) {
    const auto& prompt = running.prompt();
    layers = running.sequence().layers();
    tokens = running.sequence().length();
    prompt_tokens = prompt.tokens + entry.new_tokens;
    stage = prompt.layer;
    if (stage > 0 && entry.more) {
      fail_entry(number, "Step::begin: entry ", number, " has more to come, but rows of its prompt wait for layer ",
                 stage, ": its end has come");
    }
    if (stage > 0 && entry.new_tokens > 0) {
      fail_entry(number, "Step::begin: entry ", number, " has ", entry.new_tokens,
                 " new tokens, out of range 0 to 0: rows of its prompt wait for layer ", stage);
    }
    const Index max_outputs = stage == 0 ? tokens - first_row() : trailing_rows(prompt.keys);
    if (entry.outputs < 0 || (!entry.more && entry.outputs > max_outputs)) {
      fail_entry(number, "Step::begin: entry ", number, " has ", entry.outputs, " outputs, out of range 0 to ",
                 max_outputs);
    }
    if (entry.max_rows < tail()) {
      fail_entry(number, "Step::begin: entry ", number, " has max_rows ", entry.max_rows, ", out of range, at least ",
                 tail(), ": the tokens that score or are outputs run together");
    }
    check_score(number);
    for (const Position position : entry.continuations) {
      if (position >= 0 && position < tokens) continue;
      fail_entry(number, "Step::begin: entry ", number, " has a continuation at position ", position,
                 ", out of range 0 to ", tokens - 1);
    }
  }

  bool unfinished() const { return entry.more || !last_slice; }
  bool ends_at(Index depth) const { return joined && event == depth; }
  Index outputs() const { return joined && last_slice ? entry.outputs : 0; }

  bool wants_scores(Index depth) const {
    return joined && last_slice && ((event == depth && selection.ranks()) || (sums_scores() && event < layers));
  }

  /// Whether an earlier step has pruned the token here. What waits here of the present prompt has not been pruned.
  bool pruned_here(Position position, Depth depth) const {
    return running.depth(position) == depth && position < tokens - prompt_tokens && running.parked(position) &&
           !running.waits_for_prompt(position);
  }

  /// Lists the indices of the keys that stay where nothing is ranked: all, or those that no earlier step has pruned
  /// here and those that the selection lists. `protect` is scratch memory.
  void list_unranked(Positions keys, Depth depth, std::vector<Position>& protect, std::vector<Index>& list) const {
    const bool all = !ends_at(depth) || selection.kind == Selection::Kind::all;
    if (!all) {
      protect.assign(selection.protect.begin(), selection.protect.end());
      std::ranges::sort(protect);
    }
    list.resize(keys.size());
    Index* end = list.data();  // appending would check the capacity for each key
    for (std::size_t i = 0; i < keys.size(); ++i) {
      *end = static_cast<Index>(i);
      end += all || !pruned_here(keys[i], depth) || std::ranges::binary_search(protect, keys[i]) ? 1 : 0;
    }
    list.resize(static_cast<std::size_t>(end - list.data()));
  }

  bool sums_scores() const { return last_slice && over_layers(score); }

  /// The first token that has not run at all.
  Index first_row() const {
    Index first = tokens - entry.new_tokens;
    while (first > 0 && running.depth(static_cast<Position>(first - 1)) == 0) --first;
    return first;
  }

  /// Sets `limit` for the next slice of a stage, whose rows are at `row_at(0 … rows - 1)`.
  template <class RowAt>
  void choose_slice(Index rows, const RowAt& row_at) {
    last_slice = !entry.more && rows <= entry.max_rows;
    limit = tokens;
    if (last_slice || rows == 0) return;
    Index before_tail = rows;
    while (before_tail > 0 && row_at(before_tail - 1) >= tokens - tail()) --before_tail;
    const Index slice = std::min(before_tail, entry.max_rows);
    limit = slice < rows ? row_at(slice) : tokens;
  }

  /// Finds the layer at which this sequence's batch may change next, after `layers_run` layers. Throws what the policy
  /// throws, and `invalid_argument` where it would have had a chunk wait that has gone on.
  void find_event(Index layers_run) {
    selection = {};
    waits = false;
    for (event = layers_run + 1; event < layers; ++event) {
      waits = !last_slice && must_wait();
      if (last_slice) selection = entry.pruner->selection(point(active, tokens, prompt_tokens));
      // As in decode steps of a sequence that has never been pruned: there is nothing to rank or to leave out.
      const bool keeps_active = selection.kind == Selection::Kind::not_pruned_before ||
                                (selection.kind == Selection::Kind::top_k && selection.k >= active);
      if (keeps_active && running.parked_at(event) == 0) selection = {};
      if (selection.kind != Selection::Kind::all) check_chunks();
      if (waits || selection.kind != Selection::Kind::all || running.parked_at(event) > 0) return;
    }
  }

  /// Leaves the step; the sequence is as it was before.
  void roll_back() {
    running.roll_back();
    leave();
  }

  /// Has no rows from the next layer on.
  void leave() {
    joined = false;
    active = 0;
    event = layers;
    selection = {};
  }

  /// Keeps what the step did.
  void commit() noexcept {
    if (!running.running()) return;
    if (!unfinished()) {
      running.commit(!point(active, tokens, prompt_tokens).decodes());
    } else if (new_stage) {
      running.commit_slice({prompt_tokens, stage, std::move(stage_keys), std::move(stage_sums)});
    } else {
      running.commit_slice(prompt_tokens);
    }
  }

 private:
  /// How many of the last tokens score.
  Index queries() const { return std::min<Index>(score.last_queries, prompt_tokens); }
  Index tail() const { return std::max({queries(), entry.outputs, Index{1}}); }

  /// How many of the last tokens are among the ascending `keys` of the present stage and have not run in it.
  Index trailing_rows(const std::vector<Position>& keys) const {
    Index count = 0;
    while (count < std::ssize(keys) && keys[keys.size() - to_size(count) - 1] == tokens - 1 - count &&
           running.depth(static_cast<Position>(tokens - 1 - count)) == stage) {
      ++count;
    }
    return count;
  }

  /// Throws if the score is not that of the prompt's earlier steps, as far as that can be seen: where rows that score
  /// have run already, or their sums over the layers before are missing.
  void check_score(Index number) const {
    const auto& prompt = running.prompt();
    if (stage > 0 && over_layers(score) && prompt.score_sums.rows().rows < std::ssize(prompt.keys)) {
      fail_entry(number, "Step::begin: the score of entry ", number,
                 " sums over layers, that of its prompt's earlier steps did not");
    }
    for (Index position = tokens - queries(); position < tokens; ++position) {
      const bool active = stage == 0 || std::ranges::binary_search(prompt.keys, static_cast<Position>(position));
      if (!active || running.depth(static_cast<Position>(position)) <= stage) continue;
      fail_entry(number, "Step::begin: the score of entry ", number, " has last_queries ", score.last_queries,
                 ", more than that of its prompt's earlier steps: position ", position, " has run already");
    }
  }

  /// Keys of the present stage, all its slices together.
  Index stage_tokens() const {
    if (new_stage) return std::ssize(stage_keys);
    return stage > 0 ? std::ssize(running.prompt().keys) : tokens;
  }

  std::span<const Depth> prompt_depths() const {
    return running.sequence().depths().subspan(to_size(tokens - prompt_tokens));
  }

  /// Whether a slice waits at the event for the rest of its stage: where others wait already, or may be ranked.
  bool must_wait() const {
    if (running.parked_at(event) > 0 && std::ranges::count(prompt_depths(), event) > 0) return true;
    const auto ranks_or_drops = [this](Selection::Kind kind) {
      return kind == Selection::Kind::not_pruned_before ? running.parked_at(event) > 0 : kind != Selection::Kind::all;
    };
    if (!entry.more) {
      return ranks_or_drops(entry.pruner->selection(point(stage_tokens(), tokens, prompt_tokens)).kind);
    }
    constexpr Index max = most_tokens;  // how long the prompt will be is unknown
    return ranks_or_drops(entry.pruner->kind(point(tokens, tokens, prompt_tokens))) ||
           ranks_or_drops(entry.pruner->kind(point(max, max, max)));
  }

  /// Throws if a chunk of the prompt has run past the event in an earlier step.
  void check_chunks() const {
    if (running.prompt().tokens == 0) return;
    const auto depths = prompt_depths();
    const auto passed = std::ranges::find_if(depths, [this](Depth depth) { return depth > event; });
    if (passed == depths.end()) return;
    fail("policy: it prunes after ", event, " layers a prompt of ", prompt_tokens,
         " tokens, of which a chunk has gone ", "through ", *passed,
         " layers: where it keeps all of short and long prompts, it must not prune those between");
  }

  PrunePoint point(Index active_tokens, Index all_tokens, Index new_tokens) const {
    return {.layers_run = event,
            .layers = layers,
            .active_tokens = active_tokens,
            .tokens = all_tokens,
            .new_tokens = new_tokens,
            .steps = running.sequence().steps(),
            .decoded_tokens = tokens - prompt_tokens - running.sequence().prompt_end(),
            .outputs = entry.outputs,
            .continuations = entry.continuations};
  }
};

}  // namespace lazyllm::detail
