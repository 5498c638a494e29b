#pragma once

#include <utility>

#include "lazyllm/concepts.hpp"
#include "lazyllm/layer/step.hpp"

namespace lazyllm {

/// For engines whose attention block contains the feed-forward: parked rows have then run through it.
struct NoFeedForward {
  template <class Context, class T>
  void feed_forward(Context&, RowsView<T>) {}
};

/// One decoder layer around the engine's own blocks: attend, score, select, park and revive, feed-forward. Blocks are
/// held by value; an engine with large blocks gives small handles.
template <class AttentionBlock, class FeedForwardBlock = NoFeedForward>
class LazyDecoderLayer {
 public:
  explicit LazyDecoderLayer(AttentionBlock attention, FeedForwardBlock feed_forward = {})
      : attention_(std::move(attention)), feed_forward_(std::move(feed_forward)) {}

  /// Runs the layer on the running batch of `step`; the layers of a model once each, in their order. If anything
  /// throws, the step is aborted.
  template <class Context, class Step>
  requires Attention<AttentionBlock, Context, typename Step::value_type> &&
      FeedForward<FeedForwardBlock, Context, typename Step::value_type>
  void forward(Context& context, Step& step) {
    step.guard([&] {
      attention_.attend(context, step.plan(), step.hidden());
      step.advance(context, attention_);
      feed_forward_.feed_forward(context, step.hidden());
    });
  }

  AttentionBlock& attention() { return attention_; }
  FeedForwardBlock& feed_forward() { return feed_forward_; }

 private:
  AttentionBlock attention_;
  [[no_unique_address]] FeedForwardBlock feed_forward_;
};

}  // namespace lazyllm
