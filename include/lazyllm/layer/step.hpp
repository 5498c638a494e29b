#pragma once

#include <span>
#include <vector>

#include "lazyllm/aux_cache/sequence.hpp"
#include "lazyllm/backend/operations.hpp"
#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/layer_plan.hpp"
#include "lazyllm/layer/hidden_rows.hpp"
#include "lazyllm/layer/step_batch.hpp"
#include "lazyllm/layer/step_checks.hpp"
#include "lazyllm/layer/step_entry.hpp"
#include "lazyllm/layer/step_output.hpp"
#include "lazyllm/layer/step_stats.hpp"
#include "lazyllm/pruner/token_pruner.hpp"

namespace lazyllm {

/// One forward pass of a batch of sequences: prefill, decode, a later turn, a chunk of a prompt or several new tokens
/// are all the same step. Owns the hidden states and the plan, and is used again for the next step. All calls of one
/// step take the same context; on CUDA, a context of the same stream serves all steps. There the rows are device
/// memory, valid in stream order. `advance` waits for the device after layers that rank tokens, with `ScoreOfRanks`
/// after all that score; elsewhere only an upload may wait, see `cuda::Context`.
///
///     RowsView<T> embeddings = step.begin(context, entries);  // fill a row for each of step.plan().positions()
///     for (auto& layer : layers) layer.forward(context, step);
///     StepOutput<T> output = step.end();                      // final norm and logits of output.rows follow
///
/// When `LazyDecoderLayer::forward` or the body of `guard` throws, the step is aborted before the exception goes on:
/// every sequence is as it was before. So is it when a running step is destroyed: declare a step after its sequences.
template <SequenceOfTokens Sequence, PrunesTokens Pruner>
class Step {
 public:
  using aux_type = typename Sequence::aux_type;          ///< where rows are parked
  using context_type = typename Sequence::context_type;  ///< the backend's
  using value_type = typename Sequence::value_type;      ///< of the hidden states
  using Entry = StepEntry<Sequence, Pruner>;             ///< what one sequence contributes: see `StepEntry`

  /// The largest step to make room for.
  struct Capacity {
    Index sequences = 1;    ///< of the batch
    Index tokens = 0;       ///< of all sequences together, history included
    Index rows = 0;         ///< of the running batch: new tokens and tokens that may be revived
    Index layers = 0;       ///< of the model
    Index hidden_size = 0;  ///< elements of a row
  };

  /// Layers that share one plan. An engine can run them as one graph. If `rows_change`, `advance` changes the rows of
  /// the batch after the attention of the last of these layers, before its feed-forward. If not, the segment ends with
  /// the model's last layer. There `advance` keeps the output rows alone, and the feed-forward may run before
  /// `advance`.
  struct Segment {
    Index first = 0;           ///< the layer to run now
    Index last = 0;            ///< the last layer with this plan
    Index scored_from = 0;     ///< the first layer whose scores will be asked for, `last + 1` if none
    bool rows_change = false;  ///< after the attention of the last one
  };

  /// Makes room, so that steps within `capacity` allocate nothing here. The context's scratch memory still grows with
  /// the longest sequence that is scored and with the window, up to 4 MiB on the CPU and 128 MiB on CUDA, or what one
  /// row of all heads takes. Throws `logic_error` if a step is running, and `invalid_argument` for a negative number,
  /// for rows without a hidden size, and for more than 2^48 of anything or elements of rows.
  void reserve(context_type& context, const Capacity& capacity) {
    if (running()) detail::fail<logic_error>("Step::reserve: a step is running; end or abort it first");
    detail::check_capacity(capacity);
    batch_.reserve(context, capacity.sequences, capacity.tokens, capacity.rows);
    if (capacity.rows > 0) hidden_.reserve(context, capacity.rows, capacity.hidden_size);
    output_rows_.reserve(detail::to_size(capacity.rows));
    output_indptr_.reserve(detail::to_size(capacity.sequences + 1));
    stats_.layers.reserve(detail::to_size(capacity.layers));
  }

  /// Starts a step and returns the rows of layer 0, `[plan().rows() x hidden_size]` without gaps, for the caller to
  /// fill with the embeddings of the tokens at `plan().positions()`. These are the new tokens of all entries in order,
  /// except for prompts in chunks or with `max_rows`: of these some run in later steps, the last tokens of a chunk, for
  /// example, with the next one. There may be no rows, for example where prompts go on in deeper layers. If the rows
  /// cannot be filled, call `abort`. Throws, and leaves the sequences as they were, `logic_error` if a step is running,
  /// or a sequence is in a running step, in two entries or was moved from; `entry_error` if an entry has a null
  /// pointer, an option out of range, new tokens or `more` while rows of its prompt wait at a deeper layer, another
  /// score than before, or other layers or hidden size than entry 0, or its sequence would become too long for
  /// `Position`; `invalid_argument` if there is no entry, or a sequence belongs to another CUDA stream. If a policy
  /// throws, its entry alone ends; if no entry is left, `begin` throws what the first one threw, see `failures`.
  RowsView<value_type> begin(context_type& context, std::span<const Entry> entries) {
    if (running()) detail::fail<logic_error>("Step::begin: a step is running; end or abort it first");
    batch_.clear_failures();
    detail::check_entries(context, entries);
    context_ = &context;
    layers_ = entries.front().sequence->layers();
    layer_ = 0;
    advances_ = false;
    output_indptr_.clear();
    stats_.layers.assign(detail::to_size(layers_), {});
    guard([&] {
      batch_.begin(context, entries);
      hidden_.start(context, batch_.plan().row_count(), entries.front().sequence->aux().hidden_size());
      begin_layer();
    });
    return hidden();
  }

  /// Starts a step of one sequence; see the other `begin`.
  RowsView<value_type> begin(context_type& context, Sequence& sequence, const Pruner& pruner, Index new_tokens) {
    const Entry entry{&sequence, &pruner, new_tokens};
    return begin(context, std::span(&entry, 1));
  }
  /// The step would be left without its pruner.
  RowsView<value_type> begin(context_type&, Sequence&, const Pruner&&, Index) = delete;

  /// The plan of the layer to run now; valid until `advance` or `begin_advance`. Throws `logic_error` if no step is
  /// running, all its layers have run, or `end_advance` is due.
  LayerPlan plan() const {
    if (!running()) detail::fail<logic_error>("Step: no layer is left to run: no step is running");
    if (advances_) detail::fail<logic_error>("Step: the next layer has no plan yet: end_advance comes first");
    if (layer_ == layers_) detail::fail<logic_error>("Step: no layer is left to run: all ", layers_, " have");
    return batch_.plan().layer(layer_, layers_, scores_wanted_);
  }

  /// The layers from the one to run now that share its plan. Throws like `plan`.
  Segment segment() const {
    (void)plan();
    const Index end = change_;
    Index scored_from = scores_wanted_ ? layer_ : end - 1;
    if (!scores_wanted_ && !batch_.wants_scores(end)) scored_from = end;
    return {layer_, end - 1, scored_from, change_ < layers_};
  }

  /// The running batch, without gaps between the rows: `[plan().rows() x hidden_size]` before a layer's attention, the
  /// rows that go on after it, and the output rows at the end. Valid until the next `advance`, `begin_advance`,
  /// `end_advance`, `begin` or `reserve`.
  RowsView<value_type> hidden() const { return hidden_.rows(); }

  /// `[entries + 1]` where each entry's rows begin in `hidden`, in host memory; valid as long as `hidden`. An entry may
  /// have no rows.
  std::span<const Index> row_indptr() const {
    return output_indptr_.empty() ? batch_.row_indptr() : std::span<const Index>(output_indptr_);
  }

  /// Whether a step has begun and not ended.
  bool running() const { return !batch_.members().empty(); }

  /// Finishes the step after its last layer. Throws `logic_error` if no step is running or layers are missing.
  StepOutput<value_type> end() {
    if (!running()) detail::fail<logic_error>("Step::end: no step is running");
    if (layer_ != layers_) {
      detail::fail<logic_error>("Step::end: ", layer_, " layers have run, all ", layers_, " must");
    }
    stats_.aux_rows = 0;
    stats_.aux_bytes = 0;
    batch_.commit([this](const Sequence& sequence) {
      stats_.aux_rows += sequence.aux().parked_rows();
      stats_.aux_bytes += sequence.aux().parked_bytes();
    });
    return {hidden(), output_indptr_, batch_.failures()};
  }

  /// The entries of the last step that failed alone, ascending; valid until the next `begin`. If an exception ended the
  /// step and these are all its entries, it was the first one's: each has an error of its own.
  std::span<const StepFailure> failures() const { return batch_.failures(); }

  /// Gives up a running step: every sequence is as it was before.
  void abort() noexcept { batch_.roll_back(); }

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
  /// that is not a finite number, or whose policy throws, ends alone; if no entry is left, this throws the first one's
  /// error, see `failures`. Throws `logic_error` for a context that is not that of `begin`, `entry_error` for a score
  /// of more rows than the block's `max_queries`, and like `plan`. If it throws, the step still runs: call `abort`, or
  /// use `guard`.
  template <class Block>
  void advance(context_type& context, Block& block) {
    begin_advance(context, block);
    end_advance();
  }

  /// The first part of `advance`: `hidden` is the rows that go on, and the feed-forward may run. On CUDA, where their
  /// number is known, the host has not waited yet: it plans while the device runs the feed-forward. That is so where
  /// all keys are rows (`Mask::causal`) and the policy answers `top_k`. Throws like `advance`.
  template <class Block>
  void begin_advance(context_type& context, Block& block) {
    const LayerPlan plan = this->plan();
    if (&context != context_) detail::fail<logic_error>("Step::advance: the context is not that of begin");
    if (layer_ == 0) detail::check_queries(block, batch_.members());
    const auto depth = static_cast<Depth>(layer_ + 1);
    // The rows of a segment go through its layers together: their depth is noted at its end.
    if (change_ == depth || plan.outputs_only()) batch_.set_depth(plan, depth);
    if (plan.outputs_only()) {
      keep_outputs(context, plan);
    } else {
      batch_.score(context, block, plan, depth);
      if (change_ == depth && !batch_.begin_change(context, plan, depth, hidden_)) end_change(context, plan);
    }
    advances_ = true;
  }

  /// The rest of `advance`, without which there is no next plan. An entry with a score that is not a finite number may
  /// end here; then its rows leave the batch. Throws like `advance`, and `logic_error` unless `begin_advance` came
  /// last.
  void end_advance() {
    if (!running() || !advances_) detail::fail<logic_error>("Step::end_advance: begin_advance must come first");
    advances_ = false;
    if (batch_.changes()) end_change(*context_, plan());
    if (layer_ + 1 < layers_) stats_.layers[detail::to_size(layer_)].kept = batch_.plan().key_count();
    if (++layer_ < layers_) begin_layer();
  }

 private:
  void end_change(context_type& context, const LayerPlan& plan) {
    const auto depth = static_cast<Depth>(layer_ + 1);
    stats_.layers[detail::to_size(depth)].revived = batch_.end_change(context, plan, depth, hidden_);
  }

  /// Counts the layer to run now, and finds the layer at which the batch changes next.
  void begin_layer() {
    LayerStats& layer = stats_.layers[detail::to_size(layer_)];
    layer.active = layer.kept = batch_.plan().key_count();
    layer.computed = hidden_.count();
    change_ = batch_.next_change(layers_);
    scores_wanted_ = batch_.wants_scores(layer_ + 1);
  }

  /// After the last layer's attention only the output rows are of use.
  void keep_outputs(context_type& context, const LayerPlan& plan) {
    output_rows_.clear();
    output_indptr_.assign(1, 0);
    for (Index s = 0; s < plan.sequences(); ++s) {
      const Index end = plan.row_indptr()[detail::to_size(s + 1)];
      for (Index row = end - plan.outputs()[detail::to_size(s)]; row < end; ++row) output_rows_.push_back(row);
      output_indptr_.push_back(std::ssize(output_rows_));
    }
    hidden_.keep(context, output_rows_);
  }

  detail::StepBatch<Sequence, Pruner> batch_;
  detail::HiddenRows<context_type, value_type> hidden_;
  std::vector<Index> output_rows_;
  std::vector<Index> output_indptr_;
  StepStats stats_;
  context_type* context_ = nullptr;  // of the running step
  Index layers_ = 0;
  Index layer_ = 0;             // layers that have run
  Index change_ = 0;            // layers that have run when the batch changes next
  bool scores_wanted_ = false;  // whether this layer's scores will be asked for
  bool advances_ = false;       // `end_advance` is due
};

}  // namespace lazyllm
