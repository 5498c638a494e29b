#pragma once

#include <algorithm>
#include <exception>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "lazyllm/aux_cache/sequence.hpp"
#include "lazyllm/backend/operations.hpp"
#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/layer_plan.hpp"
#include "lazyllm/engine/plan_builder.hpp"
#include "lazyllm/layer/step_member.hpp"
#include "lazyllm/layer/step_output.hpp"
#include "lazyllm/layer/step_stats.hpp"
#include "lazyllm/layer/transition.hpp"
#include "lazyllm/pruner/batch_pruner.hpp"

namespace lazyllm {

/// One forward pass of a batch of sequences: prefill, decode, a later turn, a chunk of a prompt or several new tokens
/// are all the same step. Owns the hidden states and the plan, and is used again for the next step. All calls of one
/// step take the same context; on CUDA, a context of the same stream serves all steps. There the rows are device
/// memory, valid in stream order; only `advance` synchronises, after layers that rank tokens.
///
///     RowsView<T> embeddings = step.begin(context, entries);  // fill a row for each of step.plan().positions()
///     for (auto& layer : layers) layer.forward(context, step);
///     StepOutput<T> output = step.end();                      // final norm and logits of output.rows follow
///
/// When a layer throws, the step is aborted before the exception goes on: every sequence is as it was before.
template <SequenceOfTokens Sequence, PrunesTokens Pruner>
class Step {
 public:
  using aux_type = typename Sequence::aux_type;
  using context_type = typename Sequence::context_type;
  using value_type = typename Sequence::value_type;
  using Entry = StepEntry<Sequence, Pruner>;

  /// The largest step to make room for.
  struct Capacity {
    Index sequences = 1;
    Index tokens = 0;  ///< of all sequences together, history included
    Index rows = 0;    ///< of the running batch: new tokens and tokens that may be revived
    Index layers = 0;
    Index hidden_size = 0;
  };

  /// Layers that share one plan: an engine can run them as one graph. If `rows_change`, the rows change between the
  /// attention and the feed-forward of the last of them.
  struct Segment {
    Index first = 0;
    Index last = 0;
    bool rows_change = false;
  };

  /// Makes room, so that steps within `capacity` allocate nothing here. The context's scratch memory still grows with
  /// the longest sequence that is scored.
  void reserve(context_type& context, const Capacity& capacity) {
    plan_.reserve(capacity.sequences, capacity.tokens);
    transition_.reserve(capacity.sequences, capacity.tokens, capacity.rows);
    pruner_.reserve(context, capacity.sequences, capacity.tokens);
    for (auto& hidden : hidden_) hidden.reserve(context, capacity.rows, capacity.hidden_size);
    for (auto* list : {&copied_rows_, &copied_targets_, &unranked_}) {
      list->reserve(detail::to_size(std::max(capacity.rows, capacity.tokens)));
    }
    stats_.layers.reserve(detail::to_size(capacity.layers));
    members_.reserve(detail::to_size(capacity.sequences));
    requests_.reserve(detail::to_size(capacity.sequences));
    output_indptr_.reserve(detail::to_size(capacity.sequences + 1));
  }

  /// Starts a step and returns the rows of layer 0, `[plan().rows() x hidden_size]` without gaps, for the caller to
  /// fill with the embeddings of the tokens at `plan().positions()`. These are the new tokens of all entries in order,
  /// except for prompts in chunks: the last tokens of a chunk, as many as score or come back, run with the next chunk.
  /// If the rows cannot be filled, call `abort`. Throws, and leaves the sequences as they were, `logic_error` if a step
  /// is running or a sequence is in a running step; `invalid_argument` if there is no entry, an entry has a null
  /// pointer or an option out of range, the sequences disagree on layers or hidden size, or a sequence would become too
  /// long for `Position`. What a policy throws ends its entry alone, or goes on if no entry is left.
  RowsView<value_type> begin(context_type& context, std::span<const Entry> entries) {
    check(entries);
    layers_ = entries.front().sequence->layers();
    hidden_size_ = entries.front().sequence->aux().hidden_size();
    layer_ = 0;
    failures_.clear();
    output_indptr_.clear();
    stats_.layers.assign(detail::to_size(layers_), {});
    guard([&] {
      Index tokens = 0;
      bool sums = false;
      for (const Entry& entry : entries) {
        members_.emplace_back(entry, members_.size());
        tokens += members_.back().tokens;
        sums |= detail::over_layers(entry.pruner->score());
      }
      // Buffers that swap places grow together, or the smaller one would grow in a later step.
      for (PlanBuilder* plan : {&plan_, &transition_.next()}) plan->reserve(std::ssize(entries), tokens);
      if (sums) pruner_.reserve_sums(context, tokens);
      plan_.clear();
      for (Member& member : members_) enter(member);
      rows_ = plan_.row_count();
      current_ = 0;
      for (auto& hidden : hidden_) {
        if (hidden.rows().rows > 0 && hidden.rows().width != hidden_size_) hidden = {};
      }
      hidden_[current_].reserve(context, rows_, hidden_size_);
      begin_layer();
    });
    return hidden();
  }

  /// Starts a step of one sequence; see the other `begin`.
  RowsView<value_type> begin(context_type& context, Sequence& sequence, const Pruner& pruner, Index new_tokens) {
    const Entry entry{&sequence, &pruner, new_tokens};
    return begin(context, std::span(&entry, 1));
  }

  /// The plan of the layer to run now; valid until `advance`. Throws `logic_error` if no step is running or all its
  /// layers have run.
  LayerPlan plan() const {
    if (!running()) detail::fail<logic_error>("Step: no layer is left to run: no step is running");
    if (layer_ == layers_) detail::fail<logic_error>("Step: no layer is left to run: all ", layers_, " have");
    return plan_.layer(layer_, layers_, scores_wanted_);
  }

  /// The layers from the one to run now that share its plan. Throws like `plan`.
  Segment segment() const {
    (void)plan();
    return {layer_, std::min(change_, layers_) - 1, change_ < layers_};
  }

  /// The running batch, without gaps between the rows: `[plan().rows() x hidden_size]` before a layer's attention, the
  /// rows that go on after it, and the output rows at the end.
  RowsView<value_type> hidden() const { return hidden_[current_].rows().subrows(0, rows_); }

  bool running() const { return !members_.empty(); }

  /// Finishes the step after its last layer. Throws `logic_error` if layers are missing.
  StepOutput<value_type> end() {
    if (!running() || layer_ != layers_) {
      detail::fail<logic_error>("Step::end: ", running() ? layer_ : 0, " layers have run, all ", layers_, " must");
    }
    stats_.aux_rows = 0;
    stats_.aux_bytes = 0;
    for (Member& member : members_) {
      member.commit();
      stats_.aux_rows += member.entry.sequence->aux().parked_rows();
      stats_.aux_bytes += member.entry.sequence->aux().parked_bytes();
    }
    members_.clear();
    std::ranges::sort(failures_, {}, &StepFailure::entry);
    return {hidden(), output_indptr_, failures_};
  }

  /// Gives up a running step: every sequence is as it was before.
  void abort() noexcept { members_.clear(); }

  /// What the last step did, or the running one so far.
  const StepStats& stats() const { return stats_; }

  /// Runs `body` and aborts the step if it throws. For engines that drive `advance` themselves.
  template <class Body>
  void guard(const Body& body) {
    try {
      body();
    } catch (...) {
      abort();
      throw;
    }
  }

  /// Goes on to the next layer once `block.attend` has run for this one: scores, selects, parks the rows that were not
  /// selected, and revives the selected tokens that are parked here. `LazyDecoderLayer` calls it between attention and
  /// feed-forward, so that parked rows leave their feed-forward undone until they are revived. An entry with a score
  /// that is not a finite number, or whose policy throws, ends alone; what it threw goes on if no entry is left.
  template <class Block>
  void advance(context_type& context, Block& block) {
    const LayerPlan plan = this->plan();
    const auto depth = static_cast<Depth>(layer_ + 1);
    for (Index s = 0; s < plan.sequences(); ++s) {
      if (member(s).joined) member(s).running.set_depth(plan.sequence(s).positions, depth);
    }
    if (plan.outputs_only()) {
      keep_outputs(context, plan);
      ++layer_;
      return;
    }
    request_scores(depth);
    if (!requests_.empty()) pruner_.score(context, block, plan, std::span<const PruneRequest<Pruner>>(requests_));
    if (change_ == depth) change_batch(context, plan, depth);
    stats_.layers[detail::to_size(layer_)].kept = plan_.key_count();
    ++layer_;
    begin_layer();
  }

 private:
  using Member = detail::StepMember<Sequence, Pruner>;
  template <class T>
  using Buffer = typename context_type::template Buffer<T>;

  Member& member(Index s) { return members_[detail::to_size(s)]; }

  void check(std::span<const Entry> entries) const {
    if (running()) detail::fail<logic_error>("Step::begin: a step is running; end or abort it first");
    if (entries.empty()) detail::fail("Step::begin: no entries, at least 1 is needed");
    for (std::size_t s = 0; s < entries.size(); ++s) {
      const Entry& entry = entries[s];
      if (entry.sequence == nullptr || entry.pruner == nullptr) {
        detail::fail("Step::begin: entry ", s, " has a null pointer");
      }
      const Sequence& sequence = *entry.sequence;
      if (sequence.layers() == 0) detail::fail<logic_error>("Step::begin: entry ", s, " has a sequence that was moved");
      const bool goes_on = sequence.unfinished() && !entry.more;
      const Index least = goes_on ? 0 : 1;
      const Index longest = std::numeric_limits<Position>::max() - sequence.length();
      if (entry.new_tokens < least || entry.new_tokens > longest) {
        detail::fail("Step::begin: entry ", s, " has ", entry.new_tokens, " new tokens, out of range ", least, " to ",
                     longest);
      }
      const Sequence& first = *entries.front().sequence;
      if (sequence.layers() != first.layers() || sequence.aux().hidden_size() != first.aux().hidden_size()) {
        detail::fail("Step::begin: entry ", s, " has ", sequence.layers(), " layers of hidden size ",
                     sequence.aux().hidden_size(), ", entry 0 has ", first.layers(), " of hidden size ",
                     first.aux().hidden_size());
      }
    }
  }

  /// Finds out what `find` finds of the policy, which may fail the member alone.
  template <class Find>
  void ask(Member& member, const Find& find) {
    try {
      find();
    } catch (...) {
      fail(member, std::current_exception());
    }
  }

  void fail(Member& member, const std::exception_ptr& error) {
    failures_.push_back({&member - members_.data(), error});
    member.fail_with(error);
    if (std::ssize(failures_) == std::ssize(members_)) std::rethrow_exception(failures_.front().error);
  }

  /// Plans layer 0 of a sequence, or its later entry.
  void enter(Member& member) {
    if (member.stage > 0) {
      const auto& keys = member.running.prompt().keys;
      unranked_.clear();
      for (const Position key : keys) {
        if (member.running.depth(key) == member.stage) unranked_.push_back(key);
      }
      member.choose_part(std::ssize(unranked_), [&](Index i) { return unranked_[detail::to_size(i)]; });
      member.active = std::ranges::lower_bound(keys, member.limit) - keys.begin();
      member.event = member.stage;
    } else {
      const Index first = member.first_row();
      member.choose_part(member.tokens - first, [first](Index i) { return first + i; });
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
    plan_.finish_sequence(member.tokens, outputs(member));
  }

  static Index outputs(const Member& member) { return member.joined && member.last_part ? member.entry.outputs : 0; }

  /// Counts the layer to run now, and finds the layer at which the batch changes next.
  void begin_layer() {
    LayerStats& layer = stats_.layers[detail::to_size(layer_)];
    layer.active = layer.kept = plan_.key_count();
    layer.computed = rows_;
    change_ = layers_;
    scores_wanted_ = false;
    for (const Member& member : members_) {
      change_ = std::min(change_, member.event);
      scores_wanted_ |= wants_scores(member, layer_ + 1);
    }
  }

  static bool wants_scores(const Member& member, Index depth) {
    if (!member.joined || !member.last_part) return false;
    return (member.event == depth && member.selection.ranks()) ||
           (member.sums_scores() && member.event < member.layers);
  }

  /// Lists what the pruners are asked after the layer that has run.
  void request_scores(Index depth) {
    requests_.clear();
    for (const Member& member : members_) {
      if (!wants_scores(member, depth)) continue;
      requests_.push_back({.pruner = member.entry.pruner,
                           .sequence = &member - members_.data(),
                           .new_tokens = member.prompt_tokens,
                           .outputs = member.entry.outputs,
                           .selection = member.ends_at(depth) ? member.selection : Selection{}});
    }
  }

  /// Prunes, and makes the next layer's batch the running one.
  void change_batch(context_type& context, const LayerPlan& plan, Depth depth) {
    pruner_.prune(context, plan, std::span<const PruneRequest<Pruner>>(requests_),
                  [&](Index s, Position position) { return pruned_here(member(s), position, depth); });
    transition_.start(depth);
    std::size_t request = 0;
    for (Index s = 0; s < plan.sequences(); ++s) {
      const bool requested = request < requests_.size() && requests_[request].sequence == s;
      change_sequence(context, plan, s, depth, requested ? request : no_request);
      request += requested;
    }
    const Index next_rows = transition_.next().row_count();
    if (transition_.moves_rows(rows_)) {
      auto& next_buffer = hidden_[1 - current_];
      next_buffer.reserve(context, next_rows, hidden_size_);
      transition_.move_rows(context, hidden(), next_buffer.rows().subrows(0, next_rows));
      current_ = 1 - current_;
      rows_ = next_rows;
    }
    pruner_.advance_sums(context);
    stats_.layers[detail::to_size(layer_ + 1)].revived = transition_.revived_rows();
    std::swap(plan_, transition_.next());
  }

  /// Appends one sequence to the next batch.
  void change_sequence(context_type& context, const LayerPlan& plan, Index s, Depth depth, std::size_t request) {
    Member& member = this->member(s);
    const SequencePlan part = plan.sequence(s);
    if (!member.joined) {
      if (member.event == depth) return join(context, member, part, depth);
      return transition_.leave_out(part);
    }
    if (member.ends_at(depth) && member.waits) {
      member.leave();
      return transition_.add(
          member.running, part, 0, [](Index) { return Position{}; }, 0);
    }
    const auto add = [&](Index count, const auto& index_at) {
      if (member.ends_at(depth)) {
        count = end_stage(context, plan, s, depth, count, index_at);
        if (!member.joined) return transition_.leave_out(part);  // its policy threw
      }
      if (member.sums_scores()) {
        for (Index i = 0; i < count; ++i) {
          pruner_.carry(plan.key_indptr()[detail::to_size(s)] + index_at(i), transition_.next().key_count() + i);
        }
      }
      transition_.add(
          member.running, part, count, [&](Index i) { return part.keys[detail::to_size(index_at(i))]; },
          outputs(member));
    };
    if (!member.ends_at(depth) || member.selection.kind == Selection::Kind::all) {
      add(std::ssize(part.keys), [](Index i) { return i; });
    } else if (member.selection.ranks()) {
      if (const Index bad = pruner_.bad(request); bad >= 0) {
        ask(member, [&] {
          detail::fail("the score of position ", part.keys[detail::to_size(bad)], " of sequence ", s, " after ", depth,
                       " layers is not a finite number");
        });
        return transition_.leave_out(part);
      }
      const std::span<const Index> kept = pruner_.kept(request);
      add(std::ssize(kept), [kept](Index i) { return kept[detail::to_size(i)]; });
    } else {
      unranked_.clear();
      for (std::size_t i = 0; i < part.keys.size(); ++i) {
        if (!pruned_here(member, part.keys[i], depth)) unranked_.push_back(static_cast<Index>(i));
      }
      add(std::ssize(unranked_), [this](Index i) { return unranked_[detail::to_size(i)]; });
    }
  }

  /// Whether an earlier step has pruned the token here. What waits here of the present prompt has not been pruned.
  static bool pruned_here(const Member& member, Position position, Depth depth) {
    return position < member.tokens - member.prompt_tokens && member.running.depth(position) == depth &&
           member.running.parked(position) && !member.running.waits_for_prompt(position);
  }

  /// Ends a stage, or revives within one, with `count` kept keys. Returns how many of them take part in the next layer.
  template <class IndexAt>
  Index end_stage(context_type& context, const LayerPlan& plan, Index s, Depth depth, Index count,
                  const IndexAt& index_at) {
    Member& member = this->member(s);
    const Positions keys = plan.sequence(s).keys;
    const auto key_at = [&](Index i) { return keys[detail::to_size(index_at(i))]; };
    member.active = count;
    if (member.last_part && member.entry.max_rows < count) {
      stage_rows_.clear();
      for (Index i = 0; i < count; ++i) {
        if (member.running.depth(key_at(i)) == depth) stage_rows_.push_back(key_at(i));
      }
      if (std::ssize(stage_rows_) > member.entry.max_rows) {
        if (member.sums_scores()) {
          copied_rows_.clear();
          for (Index i = 0; i < count; ++i) {
            copied_rows_.push_back(plan.key_indptr()[detail::to_size(s)] + index_at(i));
          }
          pruner_.take_sums(context, copied_rows_, member.stage_sums);
        }
        member.new_stage = true;
        member.stage = depth;
        for (Index i = 0; i < count; ++i) member.stage_keys.push_back(key_at(i));
        member.choose_part(std::ssize(stage_rows_), [&](Index i) { return stage_rows_[detail::to_size(i)]; });
        member.active = std::ranges::lower_bound(member.stage_keys, member.limit) - member.stage_keys.begin();
      }
    }
    ask(member, [&] { member.find_event(depth); });
    return member.active;
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
    transition_.add(
        member.running, part, member.active, [&](Index i) { return prompt.keys[detail::to_size(i)]; }, outputs(member));
  }

  /// After the last layer's attention only the output rows are of use.
  void keep_outputs(context_type& context, const LayerPlan& plan) {
    copied_rows_.clear();
    copied_targets_.clear();
    output_indptr_.assign(1, 0);
    for (Index s = 0; s < plan.sequences(); ++s) {
      const Index end = plan.row_indptr()[detail::to_size(s + 1)];
      for (Index row = end - plan.outputs()[detail::to_size(s)]; row < end; ++row) {
        copied_targets_.push_back(std::ssize(copied_rows_));
        copied_rows_.push_back(row);
      }
      output_indptr_.push_back(std::ssize(copied_rows_));
    }
    const Index outputs = std::ssize(copied_rows_);
    if (rows_ == outputs) return;
    auto& next_buffer = hidden_[1 - current_];
    next_buffer.reserve(context, outputs, hidden_size_);
    const RowCopy<value_type> copy{hidden(), copied_rows_, next_buffer.rows(), copied_targets_};
    copy_rows(context, std::span<const RowCopy<value_type>>(&copy, 1));
    current_ = 1 - current_;
    rows_ = outputs;
  }

  static constexpr std::size_t no_request = static_cast<std::size_t>(-1);

  std::vector<Member> members_;  // empty while no step is running
  PlanBuilder plan_;
  Transition<aux_type> transition_;
  BatchPruner<context_type, Pruner> pruner_;
  Buffer<value_type> hidden_[2];
  std::vector<PruneRequest<Pruner>> requests_;
  std::vector<Index> unranked_;
  std::vector<Position> stage_rows_;
  std::vector<Index> copied_rows_;
  std::vector<Index> copied_targets_;
  std::vector<Index> output_indptr_;
  std::vector<StepFailure> failures_;
  StepStats stats_;
  Index layers_ = 0;
  Index hidden_size_ = 0;
  Index layer_ = 0;   // layers that have run
  Index change_ = 0;  // layers that have run when the batch changes next
  Index rows_ = 0;
  bool scores_wanted_ = false;  // whether this layer's scores will be asked for
  int current_ = 0;             // which of the two buffers is the running batch
};

}  // namespace lazyllm
