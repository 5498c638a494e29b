#pragma once

#include <algorithm>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include "lazyllm/backend/operations.hpp"
#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/layer_plan.hpp"
#include "lazyllm/engine/plan_builder.hpp"
#include "lazyllm/layer/hidden_rows.hpp"
#include "lazyllm/layer/rows_ahead.hpp"
#include "lazyllm/layer/step_member.hpp"
#include "lazyllm/layer/step_output.hpp"
#include "lazyllm/layer/transition.hpp"
#include "lazyllm/pruner/batch_pruner.hpp"

namespace lazyllm::detail {

/// The sequences of a running step, the plan of the layer to run now, and the way to the next one: score, prune, plan,
/// move rows. A sequence that fails leaves; the others go on.
template <SequenceOfTokens Sequence, PrunesTokens Pruner>
class StepBatch {
 public:
  using Aux = typename Sequence::aux_type;
  using context_type = typename Sequence::context_type;
  using value_type = typename Sequence::value_type;
  using Entry = StepEntry<Sequence, Pruner>;
  using Member = StepMember<Sequence, Pruner>;

  void reserve(context_type& context, Index sequences, Index tokens, Index rows) {
    plan_.reserve(sequences, tokens);
    transition_.reserve(sequences, tokens, rows);
    pruner_.reserve(context, sequences, tokens);
    for (auto* list : {&unranked_, &sum_keys_, &stage_rows_}) list->reserve(to_size(tokens));
    for (auto* list : {&kept_keys_, &protect_}) list->reserve(to_size(tokens));
    members_.reserve(to_size(sequences));
    requests_.reserve(to_size(sequences));
    ahead_.reserve(sequences, rows);
  }

  /// Appends the new tokens and plans layer 0. Throws what is wrong with the entries, or the only failure.
  void begin(context_type& context, std::span<const Entry> entries) {
    ahead_.clear();
    Index tokens = 0;
    bool sums = false;
    for (const Entry& entry : entries) {
      members_.emplace_back(entry, std::ssize(members_));
      tokens += members_.back().tokens;
      sums |= over_layers(members_.back().score);
    }
    // Buffers that swap places grow together, or the smaller one would grow in a later step.
    for (PlanBuilder* plan : {&plan_, &transition_.next()}) plan->reserve(std::ssize(entries), tokens);
    if (sums) pruner_.reserve_sums(context, tokens);
    plan_.clear();
    for (Member& member : members_) enter(member);
  }

  const std::vector<Member>& members() const { return members_; }  // empty while no step is running
  const PlanBuilder& plan() const { return plan_; }
  const std::vector<StepFailure>& failures() const { return failures_; }  // until they are cleared
  void clear_failures() { failures_.clear(); }

  /// Layers that have run when the batch changes next; `layers` if it does not.
  Index next_change(Index layers) const {
    for (const Member& member : members_) layers = std::min(layers, member.event);
    return layers;
  }

  /// Whether scores are needed of the layer after which `depth` layers have run.
  bool wants_scores(Index depth) const {
    return std::ranges::any_of(members_, [depth](const Member& member) { return member.wants_scores(depth); });
  }

  /// Notes that the rows of `plan` have gone through `depth` layers.
  void set_depth(const LayerPlan& plan, Depth depth) {
    for (Index s = 0; s < plan.sequences(); ++s) {
      if (member(s).joined) member(s).running.set_depth(plan.sequence(s).positions, depth);
    }
  }

  /// Computes the scores that are needed of `plan`'s layer, which `block` has just run.
  template <class Block>
  void score(context_type& context, Block& block, const LayerPlan& plan, Depth depth) {
    request_scores(plan, depth);
    if (!requests_.empty()) pruner_.score(context, block, plan, std::span<const PruneRequest<Pruner>>(requests_));
  }

  /// Begins to prune after `plan`'s layer. Returns whether the rows that go on are the running batch already.
  bool begin_change(context_type& context, const LayerPlan& plan, Depth depth,
                    HiddenRows<context_type, value_type>& hidden) {
    pruner_.begin_prune(context, plan, std::span<const PruneRequest<Pruner>>(requests_),
                        [&](Index s, Position position) { return member(s).pruned_here(position, depth); });
    if constexpr (SelectsAhead<context_type>) {
      if (ahead_.list(plan, depth, members_, requests_, pruner_)) ahead_.move(context, pruner_, hidden);
    }
    return changes();
  }

  bool changes() const { return ahead_.moved(); }  // whether a change has begun and not ended
  /// `[sequences + 1]` where each sequence's rows begin in the running batch.
  std::span<const Index> row_indptr() const { return changes() ? ahead_.row_indptr() : plan_.row_indptr(); }

  /// Makes the next layer's batch the running one. Returns the number of revived rows.
  Index end_change(context_type& context, const LayerPlan& plan, Depth depth,
                   HiddenRows<context_type, value_type>& hidden) {
    pruner_.end_prune(context);
    transition_.start(depth);
    for (Index s = 0; s < plan.sequences(); ++s) change_sequence(context, plan, s, depth);
    if (changes()) {
      transition_.move_rows(context, hidden.last(), hidden.rows(), true);
      ahead_.end(context, hidden, members_);
    } else if (transition_.moves_rows(hidden.count())) {
      const Index rows = transition_.next().row_count();
      transition_.move_rows(context, hidden.rows(), hidden.next(context, rows), false);
      hidden.swap(rows);
    }
    pruner_.advance_sums(context);
    std::swap(plan_, transition_.next());
    return transition_.revived_rows();
  }

  /// Keeps what the step did, and ends it. `visit` sees each sequence.
  template <class Visit>
  void commit(const Visit& visit) {
    for (Member& member : members_) {
      member.commit();
      visit(*member.entry.sequence);
    }
    members_.clear();
  }

  /// Takes back what the step did, and ends it.
  void roll_back() noexcept { members_.clear(); }

 private:
  Member& member(Index s) { return members_[to_size(s)]; }

  /// Finds out what `find` finds of the policy, which may fail the member alone.
  template <class Find>
  void ask(Member& member, const Find& find) {
    try {
      find();
    } catch (...) {
      leave(member, std::current_exception());
    }
  }

  void leave(Member& member, const std::exception_ptr& error) {
    const Index entry = &member - members_.data();
    failures_.insert(std::ranges::upper_bound(failures_, entry, {}, &StepFailure::entry), {entry, error});
    member.roll_back();
    if (std::ssize(failures_) == std::ssize(members_)) std::rethrow_exception(failures_.front().error);
  }

  /// Plans layer 0 of a sequence. A prompt that waits in a deeper layer has no rows there.
  void enter(Member& member) {
    if (member.stage > 0) {
      const auto& keys = member.running.prompt().keys;
      unranked_.clear();
      for (const Position key : keys) {
        if (member.running.depth(key) == member.stage) unranked_.push_back(key);
      }
      member.choose_slice(std::ssize(unranked_), [&](Index i) { return unranked_[to_size(i)]; });
      member.active = std::ranges::lower_bound(keys, member.limit) - keys.begin();
      member.event = member.stage;
    } else {
      const Index first = member.first_row();
      member.choose_slice(member.tokens - first, [first](Index i) { return first + i; });
      if (member.limit > first) {
        member.joined = true;
        member.active = member.limit;
        ask(member, [&] { member.find_event(0); });
      } else {
        member.leave();
      }
      if (member.joined) {
        member.running.enter(first, member.limit);
        plan_.append_rows(first, member.limit);
        plan_.append_keys(0, member.limit);
      }
    }
    plan_.finish_sequence(member.tokens, member.outputs());
  }

  /// Lists what the pruners are asked after `plan`'s layer.
  void request_scores(const LayerPlan& plan, Depth depth) {
    requests_.clear();
    for (Index s = 0; s < plan.sequences(); ++s) {
      const Member& member = this->member(s);
      if (!member.wants_scores(depth)) continue;
      requests_.push_back({.score = &member.score,
                           .sequence = s,
                           .new_tokens = member.prompt_tokens,
                           .outputs = member.entry.outputs,
                           .selection = member.ends_at(depth) ? member.selection : Selection{}});
      // Where all keys are rows, none is revived.
      if (plan.sequence(s).mask == Mask::causal) requests_.back().selection.max_revived = Selection::unlimited;
    }
  }

  /// Appends one sequence to the next batch.
  void change_sequence(context_type& context, const LayerPlan& plan, Index s, Depth depth) {
    Member& member = this->member(s);
    const SequencePlan part = plan.sequence(s);
    if (!member.joined && member.event == depth) return join(context, member, part, depth);
    if (!member.joined) return transition_.leave_out(part);
    if (!member.ends_at(depth) && !member.sums_scores()) return transition_.keep(part, member.outputs());
    if (member.ends_at(depth) && member.waits) {
      member.leave();
      return transition_.add(member.running, part, {}, 0);
    }
    std::span<const Index> kept;  // indices into the keys
    if (member.ends_at(depth) && member.selection.ranks()) {
      const std::size_t request = request_of(requests_, s);
      if (const Index bad = pruner_.bad(request); bad >= 0) {
        ask(member, [&] {
          fail("the score of position ", part.keys[to_size(bad)], " of entry ", s, " after ", depth,
               " layers is not finite; if the library scores, one such product of Q and K makes all so");
        });
        return transition_.leave_out(part);
      }
      kept = pruner_.kept(request);
    } else {
      member.list_unranked(part.keys, depth, protect_, unranked_);
      kept = unranked_;
    }
    kept_keys_.resize(kept.size());
    std::ranges::transform(kept, kept_keys_.begin(), [&](Index i) { return part.keys[to_size(i)]; });
    if (member.ends_at(depth)) {
      end_stage(context, plan, s, depth, kept);
      if (!member.joined) return transition_.leave_out(part);  // its policy threw
      kept = kept.first(to_size(member.active));
    }
    if (member.sums_scores()) {
      for (std::size_t i = 0; i < kept.size(); ++i) {
        pruner_.carry(plan.key_indptr()[to_size(s)] + kept[i], transition_.next().key_count() + static_cast<Index>(i));
      }
    }
    transition_.add(member.running, part, Positions(kept_keys_).first(kept.size()), member.outputs());
  }

  /// Ends a stage, or revives within one, with `kept_keys_`, whose indices are `kept`. `active` of the member becomes
  /// the number of those that take part in the next layer.
  void end_stage(context_type& context, const LayerPlan& plan, Index s, Depth depth, std::span<const Index> kept) {
    Member& member = this->member(s);
    member.active = std::ssize(kept);
    if (member.last_slice && member.entry.max_rows < std::ssize(kept)) {
      stage_rows_.clear();
      for (const Position key : kept_keys_) {
        if (member.running.depth(key) == depth) stage_rows_.push_back(key);
      }
      if (std::ssize(stage_rows_) > member.entry.max_rows) {
        if (member.sums_scores()) {
          sum_keys_.clear();
          for (const Index i : kept) sum_keys_.push_back(plan.key_indptr()[to_size(s)] + i);
          pruner_.take_sums(context, sum_keys_, member.stage_sums);
        }
        member.new_stage = true;
        member.stage = depth;
        member.stage_keys = kept_keys_;
        member.choose_slice(std::ssize(stage_rows_), [&](Index i) { return stage_rows_[to_size(i)]; });
        member.active = std::ranges::lower_bound(member.stage_keys, member.limit) - member.stage_keys.begin();
      }
    }
    ask(member, [&] { member.find_event(depth); });
  }

  /// Appends a sequence whose prompt goes on from a deeper layer.
  void join(context_type& context, Member& member, const SequencePlan& part, Depth depth) {
    member.joined = true;
    ask(member, [&] { member.find_event(depth); });
    if (!member.joined) return transition_.leave_out(part);
    const auto& prompt = member.running.prompt();
    if (member.sums_scores()) {
      pruner_.put_sums(context, prompt.score_sums, member.active, transition_.next().key_count());
    }
    transition_.add(member.running, part, Positions(prompt.keys).first(to_size(member.active)), member.outputs());
  }

  std::vector<Member> members_;
  PlanBuilder plan_;
  Transition<Aux> transition_;
  BatchPruner<context_type, Pruner> pruner_;
  RowsAhead ahead_;
  std::vector<PruneRequest<Pruner>> requests_;
  std::vector<StepFailure> failures_;
  // Of one sequence:
  std::vector<Index> unranked_;                // kept keys, or rows that wait
  std::vector<Position> kept_keys_, protect_;  // `protect_` is scratch memory
  std::vector<Index> sum_keys_, stage_rows_;
};

}  // namespace lazyllm::detail
