#pragma once

#include <algorithm>
#include <exception>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "lazyllm/core/layer_plan.hpp"
#include "lazyllm/core/rows.hpp"
#include "lazyllm/core/sequence.hpp"
#include "lazyllm/core/stats.hpp"
#include "lazyllm/error.hpp"
#include "lazyllm/importance/attention_score.hpp"
#include "lazyllm/policy/selection.hpp"

namespace lazyllm {

/// One forward pass of a batch of sequences: prefill, decode, a later turn or several new tokens are all the same step.
/// Owns the running batch (hidden states and plan) and is used again for the next step; see `reserve` for what it
/// allocates. All calls of one step take the same context; on CUDA, a context of the same stream serves all steps. Rows
/// are the device's there: what they hold is there when the stream has come so far, and only `advance` waits for it,
/// where a layer selects by rank.
///
///     RowsView<T> embeddings = step.begin(context, entries);  // fill these
///     for (auto& layer : layers) layer.forward(context, step);
///     RowsView<T> last = step.end();                          // final norm and logits follow
///
/// When a layer throws, the step is aborted before the exception goes on.
template <class Sequence, class Pruner>
class Step {
 public:
  using context_type = typename Sequence::context_type;
  using value_type = typename Sequence::value_type;

  /// What one sequence contributes. Both objects are the caller's and must outlive the step.
  struct Entry {
    Sequence* sequence = nullptr;
    const Pruner* pruner = nullptr;
    Index new_tokens = 1;
  };

  Step() = default;
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  ~Step() { abort(); }

  /// The largest step to make room for.
  struct Capacity {
    Index sequences = 1;
    Index tokens = 0;  ///< of all sequences together, history included
    Index rows = 0;    ///< of the running batch: new tokens and tokens that may be revived
    Index layers = 0;
    Index width = 0;
  };

  /// Makes room, so that steps within `capacity` allocate nothing here. The context's scratch memory still grows with
  /// the longest sequence that is scored.
  void reserve(context_type& context, const Capacity& capacity) {
    for (auto* plan : {&plan_, &next_plan_}) plan->reserve(capacity.sequences, capacity.tokens);
    for (auto& hidden : hidden_) hidden.reserve(context, capacity.rows, capacity.width);
    for (auto* floats : {&scores_, &score_sums_, &next_score_sums_}) floats->reserve(context, capacity.tokens, 1);
    for (auto* list : {&unranked_, &summed_keys_, &summed_targets_}) list->reserve(size(capacity.tokens));
    kept_.indices.reserve(size(capacity.tokens));
    kept_.indptr.reserve(size(capacity.sequences + 1));
    tasks_.reserve(size(capacity.sequences));
    for (auto* list : {&dropped_, &revived_}) list->reserve(size(capacity.rows));
    for (auto* list :
         {&dropped_rows_, &parked_rows_, &revived_rows_, &revived_targets_, &copied_rows_, &copied_targets_}) {
      list->reserve(size(capacity.rows));
    }
    copies_.reserve(size(2 * capacity.sequences + 1));
    requests_.reserve(size(capacity.sequences));
    stats_.layers.reserve(size(capacity.layers));
    members_.reserve(size(capacity.sequences));
    extents_.reserve(size(capacity.sequences));
  }

  /// Starts a step and returns the rows `[new tokens of all entries x width]`, without gaps between them and in the
  /// order of the entries, for the caller to fill with embeddings; who cannot fill them calls `abort`. Throws
  /// `invalid_argument`, and leaves the sequences as they were, if a step is running, there is no entry, an entry has a
  /// null pointer or no new token, a sequence is in two entries or in another running step, the sequences disagree on
  /// layers or width, or a sequence would become too long for `Position`; so does what a policy throws.
  RowsView<value_type> begin(context_type& context, std::span<const Entry> entries) {
    check(entries);
    layers_ = entries.front().sequence->layers();
    width_ = entries.front().sequence->aux().width();
    layer_ = 0;
    extents_.clear();
    members_.clear();
    Index tokens = 0;
    for (const Entry& entry : entries) {
      extents_.push_back({entry.sequence->length(), entry.new_tokens});
      tokens += entry.sequence->length() + entry.new_tokens;
    }
    // Buffers that swap places grow together, or the smaller one would grow in a later step.
    for (auto* plan : {&plan_, &next_plan_}) plan->reserve(std::ssize(entries), tokens);
    if (std::ranges::any_of(entries, [](const Entry& entry) { return entry.pruner->score().over_layers; })) {
      for (auto* sums : {&score_sums_, &next_score_sums_}) sums->reserve(context, tokens, 1);
    }
    plan_.start(extents_);
    rows_ = plan_.row_count();
    current_ = 0;
    for (auto& hidden : hidden_) {
      if (hidden.rows().rows > 0 && hidden.rows().width != width_) hidden = {};
    }
    hidden_[current_].reserve(context, rows_, width_);
    stats_.layers.assign(size(layers_), {});
    running_ = true;
    guard([&] {
      for (std::size_t s = 0; s < entries.size(); ++s) {
        Sequence& sequence = *entries[s].sequence;
        if (sequence.in_step_) detail::fail("Step::begin: entry ", s, " names a sequence that is in a running step");
        members_.push_back({.entry = entries[s], .selection = {}, .intact = extents_[s].history});
        sequence.in_step_ = true;
        sequence.depth_.resize(size(extents_[s].history + extents_[s].new_tokens), 0);
      }
      begin_layer();
    });
    return hidden();
  }

  /// The same for one sequence.
  RowsView<value_type> begin(context_type& context, Sequence& sequence, const Pruner& pruner, Index new_tokens) {
    const Entry entry{&sequence, &pruner, new_tokens};
    return begin(context, std::span(&entry, 1));
  }

  /// The plan of the layer to run now. Throws `invalid_argument` if no step is running or all its layers have run.
  LayerPlan plan() const {
    if (!running_) detail::fail("Step: no layer is left to run: no step is running");
    if (layer_ == layers_) detail::fail("Step: no layer is left to run: all ", layers_, " have");
    return plan_.layer(layer_, layers_, scores_wanted_);
  }

  /// The running batch, without gaps between the rows: `[plan().rows() x width]` before a layer's attention, the rows
  /// that go on after it, and one row per sequence at the end.
  RowsView<value_type> hidden() const { return hidden_[current_].rows().subrows(0, rows_); }

  bool running() const { return running_; }

  /// Finishes the step after its last layer and returns the last row of each sequence `[sequences x width]`, valid
  /// until the next `begin`. Throws `invalid_argument` if layers are missing.
  RowsView<value_type> end() {
    if (!running_ || layer_ != layers_) {
      detail::fail("Step::end: ", running_ ? layer_ : 0, " layers have run, all ", layers_, " must");
    }
    stats_.aux_rows = 0;
    stats_.aux_bytes = 0;
    for (const Member& member : members_) {
      Sequence& sequence = *member.entry.sequence;
      sequence.in_step_ = false;
      ++sequence.steps_;
      stats_.aux_rows += sequence.aux().parked_rows();
      stats_.aux_bytes += sequence.aux().parked_bytes();
    }
    running_ = false;
    return hidden();
  }

  /// Gives up a running step. Each sequence goes back to its length before the step or, if tokens of its history had
  /// been revived already, to the first of these, whose parked row is gone: feed it again from `length()` on.
  void abort() noexcept {
    if (!running_) return;
    running_ = false;
    for (std::size_t s = 0; s < members_.size(); ++s) {
      Sequence& sequence = *members_[s].entry.sequence;
      sequence.in_step_ = false;
      sequence.drop_from(members_[s].intact);
    }
  }

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
  /// selected, and merges in the selected tokens that had been parked here before. `LazyDecoderLayer` calls it between
  /// attention and feed-forward, so that parked rows leave their feed-forward undone until they are revived. Throws
  /// `invalid_argument` for a score that is not a finite number, naming sequence, position and layer.
  template <class Block>
  void advance(context_type& context, Block& block) {
    const LayerPlan plan = this->plan();
    const auto depth = static_cast<Depth>(layer_ + 1);
    for (Index s = 0; s < plan.sequences(); ++s) {
      for (const Position row : plan.sequence(s).positions) sequence(s).depth_[size(row)] = depth;
    }
    if (plan.last_rows_only()) {
      keep_last_rows(context, plan);
      ++layer_;
      return;
    }
    if (scores_wanted_) score(context, block, plan);
    if (changes_) {
      select_keys(context, plan);
      plan_next(plan);
      change_batch(context);
    }
    stats_.layers[size(layer_)].kept = std::ssize(plan_.layer(layer_, layers_).keys());
    ++layer_;
    begin_layer();
  }

 private:
  using Score = std::remove_cvref_t<decltype(std::declval<const Pruner&>().score())>;
  using View = std::span<const Index>;
  template <class T>
  using Buffer = typename context_type::template Buffer<T>;

  /// A sequence's part of a list of all sequences.
  struct Part {
    std::size_t first = 0;
    std::size_t count = 0;

    template <class T>
    std::span<const T> of(const std::vector<T>& list) const {
      return std::span(list).subspan(first, count);
    }
  };

  struct Member {
    Entry entry;
    Selection selection;  // after the layer to run now
    Index intact = 0;     // tokens below it have the state that they had before the step
    Part dropped = {};    // on the way to the next layer
    Part revived = {};
  };

  template <class Number>
  static constexpr std::size_t size(Number number) {
    return static_cast<std::size_t>(number);
  }

  Sequence& sequence(Index s) const { return *members_[size(s)].entry.sequence; }

  void check(std::span<const Entry> entries) const {
    if (running_) detail::fail("Step::begin: a step is running; end or abort it first");
    if (entries.empty()) detail::fail("Step::begin: no entries, at least 1 is needed");
    for (std::size_t s = 0; s < entries.size(); ++s) {
      const auto& [sequence, pruner, new_tokens] = entries[s];
      if (sequence == nullptr || pruner == nullptr) detail::fail("Step::begin: entry ", s, " has a null pointer");
      const Index longest = std::numeric_limits<Position>::max() - sequence->length();
      if (new_tokens < 1 || new_tokens > longest) {
        detail::fail("Step::begin: entry ", s, " has ", new_tokens, " new tokens, out of range 1 to ", longest);
      }
      const Sequence& first = *entries.front().sequence;
      if (sequence->layers() != first.layers() || sequence->aux().width() != first.aux().width()) {
        detail::fail("Step::begin: entry ", s, " has ", sequence->layers(), " layers of width ",
                     sequence->aux().width(), ", entry 0 has ", first.layers(), " of width ", first.aux().width());
      }
    }
  }

  /// Counts the layer to run now, and asks the policies what comes after it, so that its attention can know.
  void begin_layer() {
    LayerStats& layer = stats_.layers[size(layer_)];
    layer.active = layer.kept = plan_.key_count();
    layer.computed = rows_;
    changes_ = false;
    scores_wanted_ = false;
    const LayerPlan plan = this->plan();
    for (Index s = 0; s < plan.sequences() && !plan.last_rows_only(); ++s) {
      Member& member = members_[size(s)];
      const SequencePlan part = plan.sequence(s);
      member.selection = member.entry.pruner->selection({.layers_run = layer_ + 1,
                                                         .layers = layers_,
                                                         .active = std::ssize(part.keys),
                                                         .tokens = part.tokens,
                                                         .new_tokens = member.entry.new_tokens,
                                                         .steps = sequence(s).steps()});
      changes_ |= member.selection.kind != Selection::Kind::all || sequence(s).parked_at_[size(layer_ + 1)] > 0;
      scores_wanted_ |= wants_scores(s);
    }
  }

  static bool by_rank(const Selection& selection) {
    return selection.kind == Selection::Kind::count || selection.kind == Selection::Kind::mass;
  }

  bool over_layers(Index s) const { return members_[size(s)].entry.pruner->score().over_layers; }

  /// Whether scores of the layer to run now are needed.
  bool wants_scores(Index s) const {
    const Selection& selection = members_[size(s)].selection;
    return over_layers(s) || (by_rank(selection) && !selection.random_seed);
  }

  /// The numbers of the keys of the sequences [first, last).
  static std::span<float> of_keys(const Buffer<float>& buffer, const LayerPlan& plan, Index first, Index last) {
    const Index begin = plan.key_indptr()[size(first)];
    return {buffer.rows().row(begin), size(plan.key_indptr()[size(last)] - begin)};
  }

  /// Computes the scores of this layer for all sequences that want them, and adds them to the sums of those that sum
  /// them up.
  template <class Block>
  void score(context_type& context, Block& block, const LayerPlan& plan) {
    scores_.reserve(context, std::ssize(plan.keys()), 1);
    requests_.clear();
    for (Index s = 0; s < plan.sequences(); ++s) {
      const Entry& entry = members_[size(s)].entry;
      if (!wants_scores(s)) continue;
      requests_.push_back({&entry.pruner->score(), s, entry.new_tokens, of_keys(scores_, plan, s, s + 1)});
    }
    Score::write(context, block, plan, std::span(requests_));
    for (Index first = 0, last = 0; first < plan.sequences(); first = last) {  // neighbours at once
      const bool summed = over_layers(first);
      while (last < plan.sequences() && over_layers(last) == summed) ++last;
      if (!summed) continue;
      accumulate_scores(context, of_keys(scores_, plan, first, last), of_keys(score_sums_, plan, first, last),
                        layer_ == 0);
    }
  }

  /// Fills `kept_` for the sequences that select by rank, all at once.
  void select_keys(context_type& context, const LayerPlan& plan) {
    tasks_.clear();
    for (Index s = 0; s < plan.sequences(); ++s) {
      const Selection& selection = members_[size(s)].selection;
      if (!by_rank(selection)) continue;
      scores_.reserve(context, std::ssize(plan.keys()), 1);  // a random selection has not asked for scores
      const SequencePlan part = plan.sequence(s);
      tasks_.push_back({selection, part.tokens, part.keys, of_keys(scores_, plan, s, s + 1),
                        members_[size(s)].entry.pruner->score().pooling});
    }
    if (tasks_.empty()) return;
    if (const std::optional<BadScore> bad = select(context, std::span<const SelectionTask>(tasks_), kept_)) {
      const Positions keys = tasks_[bad->task].active;
      Index s = 0;
      while (plan.sequence(s).keys.data() != keys.data()) ++s;
      detail::fail("the score of position ", keys[size(bad->index)], " of sequence ", s, " after ", layer_ + 1,
                   " layers is not a finite number");
    }
  }

  /// The kept ones' indices into the keys of a sequence that does not select by rank.
  std::span<const Index> unranked(const SequencePlan& part, Index s) {
    const Selection& selection = members_[size(s)].selection;
    unranked_.clear();
    for (std::size_t i = 0; i < part.keys.size(); ++i) {
      const Position key = part.keys[i];
      const auto parked_here = [&] {
        return sequence(s).depth_[size(key)] == layer_ + 1 && sequence(s).aux().holds(key);
      };
      if (selection.kind == Selection::Kind::all || !parked_here()) unranked_.push_back(static_cast<Index>(i));
    }
    return unranked_;
  }

  /// Plans the next layer from what each sequence keeps.
  void plan_next(const LayerPlan& plan) {
    next_plan_.clear();
    for (auto* list : {&dropped_, &revived_}) list->clear();
    for (auto* list :
         {&dropped_rows_, &revived_targets_, &copied_rows_, &copied_targets_, &summed_keys_, &summed_targets_}) {
      list->clear();
    }
    std::size_t task = 0;
    for (Index s = 0; s < plan.sequences(); ++s) {
      const bool ranked = by_rank(members_[size(s)].selection);
      plan_next(plan, s, ranked ? kept_.of(task++) : unranked(plan.sequence(s), s));
    }
  }

  /// Appends the sequence to the next layer's plan: its keys are the kept ones, its rows those of them that have gone
  /// exactly as deep as the next layer. These stand in the running batch or are parked.
  void plan_next(const LayerPlan& plan, Index s, std::span<const Index> kept) {
    Member& member = members_[size(s)];
    Sequence& sequence = *member.entry.sequence;
    const SequencePlan part = plan.sequence(s);
    const std::size_t first_dropped = dropped_.size();
    const std::size_t first_revived = revived_.size();
    const bool may_revive = sequence.parked_at_[size(layer_ + 1)] > 0;
    Index row = 0;
    const auto drop_before = [&](Position key) {
      for (; row < std::ssize(part.positions) && part.positions[size(row)] < key; ++row) {
        dropped_.push_back(part.positions[size(row)]);
        dropped_rows_.push_back(part.first_row + row);
      }
    };
    for (const Index i : kept) {
      const Position key = part.keys[size(i)];
      if (over_layers(s)) {
        summed_keys_.push_back(plan.key_indptr()[size(s)] + i);
        summed_targets_.push_back(next_plan_.key_count());
      }
      next_plan_.append_key(key);
      drop_before(key);
      const Index target = next_plan_.row_count();
      if (row < std::ssize(part.positions) && part.positions[size(row)] == key) {
        copied_rows_.push_back(part.first_row + row++);
        copied_targets_.push_back(target);
        next_plan_.append_row(key);
      } else if (may_revive && sequence.depth_[size(key)] == layer_ + 1) {
        revived_.push_back(key);
        revived_targets_.push_back(target);
        next_plan_.append_row(key);
      }
    }
    drop_before(std::numeric_limits<Position>::max());
    member.dropped = {first_dropped, dropped_.size() - first_dropped};
    member.revived = {first_revived, revived_.size() - first_revived};
    next_plan_.finish_sequence(part.tokens);
  }

  /// Makes the next layer's plan the current one, with the hidden states and sums that it needs.
  void change_batch(context_type& context) {
    const Index next_rows = next_plan_.row_count();
    if (!dropped_.empty() || !revived_.empty()) {
      auto& next_buffer = hidden_[1 - current_];
      next_buffer.reserve(context, next_rows, width_);
      move_rows(context, next_buffer.rows().subrows(0, next_rows));
      for (Member& member : members_) settle(member);
      current_ = 1 - current_;
      rows_ = next_rows;
    }
    if (!summed_keys_.empty()) {
      copy_rows(context, RowsView<const float>(score_sums_.rows()), View(summed_keys_), next_score_sums_.rows(),
                View(summed_targets_));
      std::swap(score_sums_, next_score_sums_);
    }
    stats_.layers[size(layer_ + 1)].revived = std::ssize(revived_);
    plan_.swap(next_plan_);
  }

  /// Copies the rows that go on to `next`, the dropped ones to the Aux Caches and the revived ones from there, all at
  /// once. Until `settle` the revived ones keep their parked rows: if anything throws, they still have them.
  void move_rows(context_type& context, RowsView<value_type> next) {
    // All rows are taken first: it may move those of a pool.
    for (const Member& member : members_) member.entry.sequence->aux_.acquire(context, member.dropped.of(dropped_));
    parked_rows_.clear();
    revived_rows_.clear();
    for (const Member& member : members_) {
      const auto& aux = member.entry.sequence->aux();
      for (const Position token : member.dropped.of(dropped_)) parked_rows_.push_back(aux.row(token));
      for (const Position token : member.revived.of(revived_)) revived_rows_.push_back(aux.row(token));
    }
    copies_.clear();
    copies_.push_back({hidden(), copied_rows_, next, copied_targets_});
    for (const Member& member : members_) {
      const RowsView<value_type> aux = member.entry.sequence->aux().rows();
      if (member.dropped.count > 0) {
        copies_.push_back({hidden(), member.dropped.of(dropped_rows_), aux, member.dropped.of(parked_rows_)});
      }
      if (member.revived.count > 0) {
        copies_.push_back({aux, member.revived.of(revived_rows_), next, member.revived.of(revived_targets_)});
      }
    }
    copy_rows(context, std::span<const RowCopy<value_type>>(copies_));
  }

  /// Notes that the member's rows have been moved.
  void settle(Member& member) {
    Sequence& sequence = *member.entry.sequence;
    const Positions revived = member.revived.of(revived_);
    if (!revived.empty()) member.intact = std::min<Index>(member.intact, revived.front());
    sequence.aux_.release(revived);
    sequence.parked_at_[size(layer_ + 1)] += static_cast<Index>(member.dropped.count) - std::ssize(revived);
  }

  /// After the last layer's attention only the last row of each sequence is of use.
  void keep_last_rows(context_type& context, const LayerPlan& plan) {
    if (rows_ == plan.sequences()) return;
    copied_rows_.clear();
    copied_targets_.clear();
    for (Index s = 0; s < plan.sequences(); ++s) {
      copied_rows_.push_back(plan.row_indptr()[size(s + 1)] - 1);
      copied_targets_.push_back(s);
    }
    auto& next_buffer = hidden_[1 - current_];
    next_buffer.reserve(context, plan.sequences(), width_);
    copy_rows(context, RowsView<const value_type>(hidden()), View(copied_rows_), next_buffer.rows(),
              View(copied_targets_));
    current_ = 1 - current_;
    rows_ = plan.sequences();
  }

  std::vector<Member> members_;
  std::vector<PlanBuffers::Extent> extents_;
  PlanBuffers plan_;
  PlanBuffers next_plan_;
  Buffer<value_type> hidden_[2];
  Buffer<float> scores_;
  Buffer<float> score_sums_;  // over the layers, one for each key of the plan
  Buffer<float> next_score_sums_;
  // The way from this layer's batch to the next one's, all sequences one after the other.
  std::vector<ScoreRequest<Score>> requests_;
  std::vector<SelectionTask> tasks_;
  KeptTokens kept_;
  std::vector<Index> unranked_;  // of one sequence only
  std::vector<Position> dropped_;
  std::vector<Index> dropped_rows_;
  std::vector<Index> parked_rows_;  // of the Aux Caches
  std::vector<Position> revived_;
  std::vector<Index> revived_rows_;  // of the Aux Caches
  std::vector<Index> revived_targets_;
  std::vector<Index> copied_rows_;
  std::vector<Index> copied_targets_;
  std::vector<Index> summed_keys_;
  std::vector<Index> summed_targets_;
  std::vector<RowCopy<value_type>> copies_;
  StepStats stats_;
  Index layers_ = 0;
  Index width_ = 0;
  Index layer_ = 0;  // layers that have run
  Index rows_ = 0;
  bool changes_ = false;        // whether the next layer's batch differs from this one's
  bool scores_wanted_ = false;  // whether this layer's scores will be asked for
  int current_ = 0;             // which of the two buffers is the running batch
  bool running_ = false;
};

}  // namespace lazyllm
