#pragma once

#include <concepts>
#include <span>
#include <utility>

#include "lazyllm/backend/operations.hpp"
#include "lazyllm/engine/concepts.hpp"
#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/layer_plan.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/engine/rows.hpp"
#include "lazyllm/score/attention_score.hpp"

namespace lazyllm {

namespace detail {

/// Runs a feed-forward in the way that it offers.
template <class Block, Backend Context, class T>
void run_feed_forward(Block& block, Context& context, std::span<const Index> row_indptr, RowsView<T> hidden) {
  if constexpr (FeedForwardPerSequence<Block, Context, T>) {
    block.feed_forward(context, row_indptr, hidden);
  } else {
    block.feed_forward(context, hidden);
  }
}

}  // namespace detail

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
  /// The layers of a model run once each, in their order. An attention block that has `layer()` is held to it: another
  /// layer's turn throws `logic_error` before the block is called. The step counts calls, so that it cannot tell the
  /// layers of other blocks apart.
  template <Backend Context, class Step>
  void forward(Context& context, Step& step) {
    using T = typename Step::value_type;
    static_assert(Attention<AttentionBlock, Context, T>,
                  "lazyllm: the attention block needs `attend(Context&, const LayerPlan&, RowsView<T>)`, callable with "
                  "these three by value or const reference");
    constexpr bool feeds_forward =
        FeedForward<FeedForwardBlock, Context, T> || FeedForwardPerSequence<FeedForwardBlock, Context, T>;
    static_assert(feeds_forward,
                  "lazyllm: the feed-forward block needs `feed_forward(Context&, RowsView<T>)`, or with "
                  "`std::span<const Index>` of row_indptr between these two");
    if constexpr (Attention<AttentionBlock, Context, T> && feeds_forward) {
      step.guard([&] {
        const LayerPlan plan = step.plan();
        check_layer(plan.layer());
        if (plan.rows() > 0) attention_.attend(context, plan, step.hidden());
        step.begin_advance(context, attention_);
        if (step.hidden().rows > 0) {
          detail::run_feed_forward(feed_forward_, context, step.row_indptr(), step.hidden());
        }
        step.end_advance();
      });
    }
  }

  /// The engine's attention block.
  AttentionBlock& attention() { return attention_; }
  /// The engine's feed-forward block.
  FeedForwardBlock& feed_forward() { return feed_forward_; }

 private:
  void check_layer([[maybe_unused]] Index layer) {
    if constexpr (requires {
                    { attention_.layer() } -> std::convertible_to<Index>;
                  }) {
      if (const Index own = attention_.layer(); own != layer) {
        detail::fail<logic_error>("LazyDecoderLayer: the attention block of layer ", own, " is run as layer ", layer);
      }
    }
  }

  AttentionBlock attention_;
  [[no_unique_address]] FeedForwardBlock feed_forward_;
};

}  // namespace lazyllm
