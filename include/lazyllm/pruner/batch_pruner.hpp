#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lazyllm/backend/operations.hpp"
#include "lazyllm/engine/layer_plan.hpp"
#include "lazyllm/policy/selection.hpp"
#include "lazyllm/pruner/token_pruner.hpp"
#include "lazyllm/score/token_score.hpp"

namespace lazyllm::detail {

/// What one sequence of a batch wants from its pruner in a layer.
template <PrunesTokens P>
struct PruneRequest {
  const typename P::score_type* score = nullptr;  ///< how the sequence's tokens rank; the member's
  Index sequence = 0;                             ///< number of the sequence in the plan
  Index new_tokens = 0;                           ///< tokens of its prompt or decode step
  Index outputs = 1;                              ///< the last tokens, so many, are protected
  Selection selection;  ///< if it ranks, select by it; if not, only add the scores to the sums
};

/// The pruners of a batch at work: scores -> kept indices of all sequences, in as many launches as for one sequence.
/// Owns the scores and their sums over the layers.
template <Backend Context, PrunesTokens P>
class BatchPruner {
 public:
  using Score = typename P::score_type;  ///< one type for all sequences
  /// Memory of the backend.
  template <class T>
  using Buffer = typename Context::template Buffer<T>;

  /// Makes room for `sequences` sequences of `tokens` tokens in all.
  void reserve(Context& context, Index sequences, Index tokens) {
    for (auto* floats : {&scores_, &pooled_, &sums_, &next_sums_}) floats->reserve(context, tokens, 1);
    for (auto* list : {&keys_, &targets_, &subset_, &subset_targets_, &kept_.indices}) {
      list->reserve(to_size(tokens));
    }
    revives_.reserve(to_size(tokens));
    masks_.reserve(to_size(tokens));
    kept_.indptr.reserve(to_size(sequences + 1));
    kept_.bad.reserve(to_size(sequences));
    windows_.reserve(to_size(sequences));
    options_.reserve(to_size(sequences));
    pool_tasks_.reserve(to_size(sequences));
    tasks_.reserve(to_size(sequences));
    kept_of_.reserve(to_size(sequences));
    if constexpr (SelectsAhead<Context>) selection_.reserve(context, sequences, tokens);
  }

  /// Makes room for the sums over the layers of `tokens` tokens. The two buffers swap places, so they grow together.
  void reserve_sums(Context& context, Index tokens) {
    for (auto* floats : {&sums_, &next_sums_}) floats->reserve(context, tokens, 1);
  }

  /// Computes the scores of the layer that `block` has just run for all `requests`, and adds those that are summed over
  /// the layers to their sums; in layer 0 the sums begin.
  template <class Block>
  void score(Context& context, Block& block, const LayerPlan& plan, std::span<const PruneRequest<P>> requests) {
    scores_.reserve(context, std::ssize(plan.keys()), 1);
    windows_.clear();
    options_.clear();
    for (const auto& request : requests) {
      windows_.push_back(score_window(*request.score, plan, request.sequence, request.new_tokens,
                                      of_keys(scores_, plan, request.sequence, request.sequence + 1)));
      options_.push_back(request.score);
    }
    Score::score(context, block, plan, std::span<const ScoreWindow>(windows_), std::span<const Score* const>(options_));
    for (std::size_t first = 0, last = 0; first < requests.size(); first = last) {  // neighbours in one launch
      const auto summed = [&](std::size_t i) { return over_layers(*requests[i].score); };
      for (last = first + 1; last < requests.size() && summed(last) == summed(first) &&
                             requests[last].sequence == requests[last - 1].sequence + 1;) {
        ++last;
      }
      if (!summed(first)) continue;
      const Index end = requests[last - 1].sequence + 1;
      accumulate_scores(context, of_keys(scores_, plan, requests[first].sequence, end),
                        of_keys(sums_, plan, requests[first].sequence, end), plan.layer() == 0);
    }
  }

  /// Begins to select by the scores of the last `score`, for the requests that rank. `parked_here(sequence, position)`
  /// says whether a token would be revived. A backend that selects ahead is not waited for.
  template <class ParkedHere>
  void begin_prune(Context& context, const LayerPlan& plan, std::span<const PruneRequest<P>> requests,
                   const ParkedHere& parked_here) {
    keys_.clear();  // a step that was given up may have left some
    targets_.clear();
    sums_change_ = false;
    pool_tasks_.clear();
    tasks_.clear();
    kept_of_.assign(requests.size(), no_task);
    revives_.resize(plan.keys().size());
    masks_.clear();
    for (const auto& request : requests) masks_.resize(masks_.size() + mask_size(plan, request));
    std::size_t mask = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto& request = requests[i];
      if (!request.selection.ranks()) continue;
      const SequencePlan part = plan.sequence(request.sequence);
      std::span<float> scores = of_keys(scores_, plan, request.sequence, request.sequence + 1);
      if (const Index width = pooling(*request.score); width > 1) {
        pooled_.reserve(context, std::ssize(plan.keys()), 1);
        const std::span<float> pooled = of_keys(pooled_, plan, request.sequence, request.sequence + 1);
        pool_tasks_.push_back({scores, pooled, width});
        scores = pooled;
      }
      kept_of_[i] = tasks_.size();
      tasks_.push_back(P::task(request.selection, part.tokens, request.outputs, part.keys, scores));
      if (const std::size_t size = mask_size(plan, request); size > 0) {
        tasks_.back().protect_mask = fill_mask(std::span(masks_).subspan(mask, size), request.selection);
        mask += size;
      }
      if (request.selection.max_revived == Selection::unlimited) continue;
      const auto first = to_size(plan.key_indptr()[to_size(request.sequence)]);
      for (std::size_t k = 0; k < part.keys.size(); ++k) {
        revives_[first + k] = parked_here(request.sequence, part.keys[k]);
      }
      tasks_.back().revives = std::span(revives_).subspan(first, part.keys.size());
      tasks_.back().max_revived = request.selection.max_revived;
    }
    if (tasks_.empty()) return;
    if (!pool_tasks_.empty()) pool_scores(context, std::span<const PoolTask>(pool_tasks_));
    if constexpr (SelectsAhead<Context>) {
      begin_selection(context, std::span<const SelectionTask>(tasks_), selection_);
    } else {
      select_tokens(context, std::span<const SelectionTask>(tasks_), kept_);
    }
  }

  /// How many tokens request `i`, which ranks, keeps; -1 where that is known at the end only. After
  /// `begin_prune`, for backends that select ahead.
  Index count(std::size_t i) const { return selection_.count(task(i)); }

  /// The number of the selection's task for request `i`, which ranks.
  Index task(std::size_t i) const { return static_cast<Index>(kept_of_[i]); }

  /// After `begin_prune`, copies kept rows as `rows` says; see `SelectsAhead`.
  template <class T>
  void copy_kept(Context& context, RowsView<const T> source, RowsView<T> target, std::span<const KeptRows> rows) {
    copy_kept_rows(context, selection_, source, target, rows);
  }

  /// Ends what `begin_prune` began: the kept indices are known.
  void end_prune(Context& context) {
    if constexpr (SelectsAhead<Context>) {
      if (!tasks_.empty()) end_selection(context, selection_, kept_);
    }
  }

  /// The ascending indices of the kept tokens into the keys of request `i`'s sequence; it must have ranked.
  std::span<const Index> kept(std::size_t i) const { return kept_.of(kept_of_[i]); }

  /// The index of the first score of request `i` that is not finite, or -1.
  Index bad(std::size_t i) const { return kept_of_[i] == no_task ? -1 : kept_.bad[kept_of_[i]]; }

  /// Says, after `end_prune`, that key `from` of the plan becomes key `to` of the next one, for its sum over the
  /// layers.
  void carry(Index from, Index to) {
    keys_.push_back(from);
    targets_.push_back(to);
  }

  /// Copies the sums of `keys`, numbers of the plan's keys, to `target`.
  void take_sums(Context& context, std::span<const Index> keys, Buffer<float>& target) {
    target.reserve(context, std::ssize(keys), 1);
    list_to(subset_targets_, std::ssize(keys));
    copy_rows(context, RowsView<const float>(sums_.rows()), keys, target.rows(), subset_targets_);
  }

  /// Copies sums that `take_sums` has taken to the keys of the next plan from `first` on.
  void put_sums(Context& context, const Buffer<float>& source, Index count, Index first) {
    list_to(subset_targets_, count);
    subset_.clear();
    for (Index i = 0; i < count; ++i) subset_.push_back(first + i);
    copy_rows(context, RowsView<const float>(source.rows()), subset_targets_, next_sums_.rows(), subset_);
    sums_change_ = true;
  }

  /// Moves the sums to the next plan.
  void advance_sums(Context& context) {
    if (!keys_.empty()) copy_rows(context, RowsView<const float>(sums_.rows()), keys_, next_sums_.rows(), targets_);
    if (!keys_.empty() || sums_change_) std::swap(sums_, next_sums_);
  }

 private:
  struct NoSelection {};
  template <class C>
  struct SelectionOf {
    using type = NoSelection;
  };
  template <SelectsAhead C>
  struct SelectionOf<C> {
    using type = typename C::PendingSelection;
  };

  static constexpr std::size_t no_task = static_cast<std::size_t>(-1);

  /// The numbers of the keys of the sequences [first, last).
  static std::span<float> of_keys(const Buffer<float>& buffer, const LayerPlan& plan, Index first, Index last) {
    const Index begin = plan.key_indptr()[to_size(first)];
    return {buffer.rows().row(begin), to_size(plan.key_indptr()[to_size(last)] - begin)};
  }

  /// Bytes that the mask of a request's listed positions takes: none where it lists none.
  static std::size_t mask_size(const LayerPlan& plan, const PruneRequest<P>& request) {
    return request.selection.protect.empty() ? 0 : to_size(plan.sequence(request.sequence).tokens);
  }

  /// Joins a selection's mask and its listed positions in `mask`, `[tokens]` of zeros.
  static std::span<const std::uint8_t> fill_mask(std::span<std::uint8_t> mask, const Selection& selection) {
    std::copy_n(selection.protect_mask.begin(), std::min(mask.size(), selection.protect_mask.size()), mask.begin());
    for (const Position position : selection.protect) {
      if (position >= 0 && to_size(position) < mask.size()) mask[to_size(position)] = 1;
    }
    return mask;
  }

  static void list_to(std::vector<Index>& list, Index count) {
    list.clear();
    for (Index i = 0; i < count; ++i) list.push_back(i);
  }

  Buffer<float> scores_;  // one for each key of the plan, as are the following
  Buffer<float> pooled_;
  Buffer<float> sums_;
  Buffer<float> next_sums_;
  std::vector<ScoreWindow> windows_;  // of the requests
  std::vector<const Score*> options_;
  std::vector<PoolTask> pool_tasks_;
  std::vector<SelectionTask> tasks_;
  std::vector<std::size_t> kept_of_;   // by request: its task
  std::vector<std::uint8_t> revives_;  // by key, of the requests with a limit
  std::vector<std::uint8_t> masks_;    // by position, of the requests that list protected ones
  [[no_unique_address]] typename SelectionOf<Context>::type selection_;
  KeptTokens kept_;
  // From the sums of this plan to those of the next one.
  std::vector<Index> keys_;
  std::vector<Index> targets_;
  std::vector<Index> subset_;  // of the keys of one sequence
  std::vector<Index> subset_targets_;
  bool sums_change_ = false;
};

}  // namespace lazyllm::detail
