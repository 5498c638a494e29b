#pragma once

#include <vector>

#include "examples/llama/model/cpu.hpp"
#include "examples/llama/program/timing.hpp"

namespace llama {

/// Blocks of the host on the CPU that add their time to `milliseconds`.
template <class T>
struct TimedAttention {
  AttentionBlock<T> block;
  double* milliseconds;

  void attend(lazyllm::cpu::Context& context, const lazyllm::LayerPlan& plan, RowsView<T> hidden) {
    const Clock::time_point start = Clock::now();
    block.attend(context, plan, hidden);
    *milliseconds += milliseconds_since(start);
  }
  auto queries(const lazyllm::LayerPlan& plan) const { return block.queries(plan); }
  auto key_view(const lazyllm::LayerPlan& plan, Index s) const { return block.key_view(plan, s); }
};

template <class T>
struct TimedFeedForward {
  FeedForwardBlock<T> block;
  double* milliseconds;

  void feed_forward(lazyllm::cpu::Context& context, RowsView<T> hidden) {
    const Clock::time_point start = Clock::now();
    block.feed_forward(context, hidden);
    *milliseconds += milliseconds_since(start);
  }
};

/// Prefills of one sequence that measure the library's share: the part of the step that is neither in the host's blocks
/// nor its embedding, which is scores, selection, copies of rows and bookkeeping.
template <class T>
class LibraryShare {
 public:
  using Pruner = lazyllm::TokenPruner<lazyllm::AnyPolicy>;

  LibraryShare(const Model<T>& model, Index capacity, int threads, const Pruner& pruner)
      : model_(&model),
        pruner_(pruner),
        context_(threads),
        resources_(context_, model, KvCacheSize(capacity)),
        sequence_(model.config().layers, model.config().hidden_size) {
    for (Index layer = 0; layer < model.config().layers; ++layer) {
      layers_.emplace_back(TimedAttention<T>{{&resources_, layer}, &blocks_ms_},
                           TimedFeedForward<T>{{&resources_, layer}, &blocks_ms_});
    }
  }
  LibraryShare(const LibraryShare&) = delete;
  LibraryShare& operator=(const LibraryShare&) = delete;

  /// Percent of one prefill's time.
  double percent(Tokens prompt) {
    sequence_.clear();
    blocks_ms_ = 0;
    const Clock::time_point start = Clock::now();
    const RowsView<T> embeddings = step_.begin(context_, sequence_, pruner_, std::ssize(prompt));
    const Clock::time_point embedding = Clock::now();
    model_->embed(context_, prompt, embeddings);
    blocks_ms_ += milliseconds_since(embedding);
    for (auto& layer : layers_) layer.forward(context_, step_);
    step_.end();
    const double all_ms = milliseconds_since(start);
    return 100 * (all_ms - blocks_ms_) / all_ms;
  }

 private:
  using Sequence = CpuDevice::Sequence<T>;

  const Model<T>* model_;
  Pruner pruner_;
  lazyllm::cpu::Context context_;
  BlockResources<T> resources_;
  Sequence sequence_;
  std::vector<lazyllm::LazyDecoderLayer<TimedAttention<T>, TimedFeedForward<T>>> layers_;
  lazyllm::Step<Sequence, Pruner> step_;
  double blocks_ms_ = 0;
};

}  // namespace llama
