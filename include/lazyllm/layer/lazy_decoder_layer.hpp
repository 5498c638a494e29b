#pragma once

#include <utility>

#include "lazyllm/backend/operations.hpp"
#include "lazyllm/engine/concepts.hpp"
#include "lazyllm/engine/rows.hpp"
#include "lazyllm/score/attention_score.hpp"

namespace lazyllm {

/// For engines whose attention block contains the feed-forward: parked rows have then run through it.
struct NoFeedForward {
  /// Does nothing.
  template <class Context, class T>
  void feed_forward(Context&, RowsView<T>) {}
};

/// One decoder layer around the engine's own blocks: attend, score, select, park and revive, feed-forward. Blocks are
/// held by value; an engine with large blocks gives small handles.
template <class AttentionBlock, class FeedForwardBlock = NoFeedForward>
class LazyDecoderLayer {
 public:
  /// A layer of these two blocks.
  explicit LazyDecoderLayer(AttentionBlock attention, FeedForwardBlock feed_forward = {})
      : attention_(std::move(attention)), feed_forward_(std::move(feed_forward)) {}

  /// Runs the layer on the running batch of `step`. If anything throws, the step is aborted. Where no sequence has
  /// rows, the blocks are not called.
  ///
  /// Two things are the engine's contract, nothing checks them. The layers of a model run once each, in their order:
  /// the step counts calls and cannot tell one layer's blocks from another's; a block that knows its layer can compare
  /// it with `plan.layer()`. And the pruners of the step's entries stay as they are until the step ends: what a layer
  /// keeps was planned with the options that they had when the step began.
  template <Backend Context, class Step>
  void forward(Context& context, Step& step) {
    using T = typename Step::value_type;
    static_assert(Attention<AttentionBlock, Context, T>,
                  "lazyllm: the attention block needs `attend(Context&, const LayerPlan&, RowsView<T>)`, callable with "
                  "these three by value or const reference");
    static_assert(FeedForward<FeedForwardBlock, Context, T>,
                  "lazyllm: the feed-forward block needs `feed_forward(Context&, RowsView<T>)`");
    if constexpr (Attention<AttentionBlock, Context, T> && FeedForward<FeedForwardBlock, Context, T>) {
      step.guard([&] {
        const auto plan = step.plan();
        if (plan.rows() > 0) attention_.attend(context, plan, step.hidden());
        step.begin_advance(context, attention_);
        if (step.hidden().rows > 0) feed_forward_.feed_forward(context, step.hidden());
        step.end_advance();
      });
    }
  }

  /// The engine's attention block.
  AttentionBlock& attention() { return attention_; }
  /// The engine's feed-forward block.
  FeedForwardBlock& feed_forward() { return feed_forward_; }

 private:
  AttentionBlock attention_;
  [[no_unique_address]] FeedForwardBlock feed_forward_;
};

}  // namespace lazyllm
