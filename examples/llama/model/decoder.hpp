#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "examples/llama/library.hpp"
#include "examples/llama/model/blocks.hpp"
#include "examples/llama/model/kv_cache.hpp"
#include "examples/llama/model/layer_observer.hpp"
#include "examples/llama/model/model.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

namespace llama {

/// What both decoders have: the caches of one or more sequences and the buffers that a forward pass needs.
template <class T, class Device = CpuDevice>
class DecoderState {
 public:
  using Context = typename Device::Context;
  using Execution = typename Device::Execution;

  DecoderState(const Model<T, Device>& model, const KvRoom& room, Execution execution)
      : model_(&model), context_(execution), room_(room), shared_(context_, model, room) {
    logits_.reserve(context_, room.sequences, model.config().vocab);
  }
  DecoderState(const DecoderState&) = delete;
  DecoderState& operator=(const DecoderState&) = delete;

  double operations() const { return shared_.operations; }  ///< floating-point operations of all steps so far
  const KvRoom& room() const { return room_; }
  Index kv_bytes() const { return shared_.attention.kv_bytes(); }  ///< of all sequences
  void observe_layers(LayerObserver observer) { observer_ = std::move(observer); }

 protected:
  /// Checks that the step fits, and joins its tokens; nothing else has changed when it throws. `history(s)` is the
  /// length of sequence s.
  template <class History>
  void start(std::span<const Tokens> tokens, const History& history) {
    if (std::ssize(tokens) != room_.sequences) {
      fail("a step of ", tokens.size(), " sequences, the decoder has ", room_.sequences);
    }
    tokens_.clear();
    for (Index s = 0; s < room_.sequences; ++s) {
      const Tokens own = tokens[static_cast<std::size_t>(s)];
      const Index length = history(s) + std::ssize(own);
      check_length(model_->config(), length);
      if (length > room_.capacity) {
        fail("a sequence of ", length, " tokens is out of range 1 to ", room_.capacity,
             ", the capacity of the KV cache");
      }
      model_->check(own);
      tokens_.insert(tokens_.end(), own.begin(), own.end());
    }
  }

  void observe(const lazyllm::LayerPlan& plan) const {
    if (observer_) observer_(plan);
  }

  /// `last` `[sequences x hidden_size]` to logits in host memory.
  RowsView<const float> logits(RowsView<const T> last) {
    const RowsView<T> normed = shared_.take(context_, shared_.normed, room_.sequences, model_->config().hidden_size);
    model_->logits(context_, last, normed, logits_.rows());
    return Device::download(context_, logits_.rows());
  }

  static std::span<const float> first(RowsView<const float> logits) {
    return {logits.data, static_cast<std::size_t>(logits.width)};
  }

  const Model<T, Device>* model_;
  Context context_;
  KvRoom room_;
  Shared<T, Device> shared_;
  std::vector<TokenId> tokens_;  // of the step, all sequences one after the other
  LayerObserver observer_;
  typename Context::template Buffer<float> logits_;
};

/// Dense inference without the library's step: what the lazy decoder is compared with.
template <class T, class Device = CpuDevice>
class DenseDecoder : public DecoderState<T, Device> {
 public:
  /// `execution` as for the model. Throws `lazyllm::cuda_error` without device memory.
  DenseDecoder(const Model<T, Device>& model, const KvRoom& room, typename Device::Execution execution)
      : DecoderState<T, Device>(model, room, execution), lengths_(static_cast<std::size_t>(room.sequences), 0) {}

  /// Runs the next tokens of the one sequence and returns the logits of the last one, `[vocab]`, valid until the next
  /// step. Throws `std::invalid_argument`, and changes nothing, if the sequence gets too long or a token is not in
  /// the vocabulary, `lazyllm::cuda_error` without device memory; the sequence is then as before the step.
  std::span<const float> step(Tokens tokens) { return this->first(step_all({&tokens, 1})); }

  /// The same for all sequences at once, with at least one token for each: the logits `[sequences x vocab]`. Throws
  /// `std::invalid_argument`, too, unless there is one list of tokens for each sequence.
  RowsView<const float> step_all(std::span<const Tokens> tokens) {
    this->start(tokens, [&](Index s) { return length(s); });
    const ModelConfig& config = this->model_->config();
    extents_.clear();
    for (std::size_t s = 0; s < tokens.size(); ++s) extents_.push_back({lengths_[s], std::ssize(tokens[s])});
    plan_.start(extents_);
    const RowsView<T> hidden = this->shared_.take(this->context_, hidden_, plan_.row_count(), config.hidden_size);
    this->model_->embed(this->context_, this->tokens_, hidden);
    RowsView<T> rest = hidden;
    for (Index layer = 0; layer < config.layers; ++layer) {
      const lazyllm::LayerPlan plan = plan_.layer(layer, config.layers);
      this->observe(plan);
      AttentionBlock<T, Device>{&this->shared_, layer}.attend(this->context_, plan, hidden);
      if (plan.last_rows_only())
        rest = this->shared_.last_rows(this->context_, plan, hidden, this->shared_.last_hidden);
      FeedForwardBlock<T, Device>{&this->shared_, layer}.feed_forward(this->context_, rest);
    }
    const RowsView<const float> logits = this->logits(rest);
    for (std::size_t s = 0; s < tokens.size(); ++s) lengths_[s] += std::ssize(tokens[s]);
    return logits;
  }

  Index length(Index s = 0) const { return lengths_[static_cast<std::size_t>(s)]; }

  /// Forgets all sequences.
  void clear() { lengths_.assign(lengths_.size(), 0); }

 private:
  std::vector<Index> lengths_;
  std::vector<lazyllm::PlanBuffers::Extent> extents_;
  lazyllm::PlanBuffers plan_;
  typename Device::Context::template Buffer<T> hidden_;
};

/// The same through the library: prefill and decode with dynamic token pruning.
template <class T, class Device = CpuDevice>
class LazyDecoder : public DecoderState<T, Device> {
 public:
  using Sequence = typename Device::template Sequence<T>;
  using Pruner = lazyllm::TokenPruner<lazyllm::AnyPolicy>;

  /// `pruner` is that of all sequences. Throws `lazyllm::cuda_error` without device memory.
  LazyDecoder(const Model<T, Device>& model, const KvRoom& room, typename Device::Execution execution, Pruner pruner)
      : LazyDecoder(model, room, execution,
                    std::vector<Pruner>(static_cast<std::size_t>(room.sequences), std::move(pruner))) {}

  /// With a pruner for each sequence.
  LazyDecoder(const Model<T, Device>& model, const KvRoom& room, typename Device::Execution execution,
              std::vector<Pruner> pruners)
      : DecoderState<T, Device>(model, room, execution), pruners_(std::move(pruners)) {
    if (std::ssize(pruners_) != room.sequences) {
      fail(pruners_.size(), " pruners for ", room.sequences, " sequences");
    }
    const ModelConfig& config = model.config();
    for (std::size_t s = 0; s < pruners_.size(); ++s) sequences_.emplace_back(config.layers, config.hidden_size);
    for (Index layer = 0; layer < config.layers; ++layer) {
      layers_.emplace_back(AttentionBlock<T, Device>{&this->shared_, layer},
                           FeedForwardBlock<T, Device>{&this->shared_, layer});
    }
  }

  /// As `DenseDecoder::step`, but without device memory a sequence goes back further than to its length before the
  /// step where tokens of its history had been revived already: feed it again from `length()` on.
  std::span<const float> step(Tokens tokens) { return this->first(step_all({&tokens, 1})); }

  /// As `DenseDecoder::step_all`.
  RowsView<const float> step_all(std::span<const Tokens> tokens) {
    this->start(tokens, [&](Index s) { return length(s); });
    entries_.clear();
    for (std::size_t s = 0; s < tokens.size(); ++s) {
      entries_.push_back({&sequences_[s], &pruners_[s], std::ssize(tokens[s])});
    }
    const RowsView<T> embeddings = step_.begin(this->context_, entries_);
    RowsView<const float> logits;
    step_.guard([&] {
      this->model_->embed(this->context_, this->tokens_, embeddings);
      for (auto& layer : layers_) {
        this->observe(step_.plan());
        layer.forward(this->context_, step_);
      }
      logits = this->logits(step_.hidden());
    });
    step_.end();
    return logits;
  }

  Index length(Index s = 0) const { return sequence(s).length(); }
  const Sequence& sequence(Index s = 0) const { return sequences_[static_cast<std::size_t>(s)]; }
  const lazyllm::StepStats& stats() const { return step_.stats(); }  ///< of the last step, all sequences together

  /// Forgets all sequences.
  void clear() {
    for (Sequence& sequence : sequences_) sequence.clear();
  }

 private:
  using LayerStep = lazyllm::Step<Sequence, Pruner>;

  std::vector<Pruner> pruners_;
  std::vector<Sequence> sequences_;
  std::vector<lazyllm::LazyDecoderLayer<AttentionBlock<T, Device>, FeedForwardBlock<T, Device>>> layers_;
  std::vector<typename LayerStep::Entry> entries_;
  LayerStep step_;
};

}  // namespace llama
