#pragma once

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "examples/llama/model/blocks.hpp"
#include "examples/llama/model/kv_cache.hpp"
#include "examples/llama/model/model.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"
#include "lazyllm/lazyllm.hpp"

namespace lazyllm::llama {

/// Called before each layer runs, with its plan.
using LayerObserver = std::function<void(const LayerPlan&)>;

/// What both decoders have: one sequence's caches and the buffers that a forward pass needs.
template <class T>
class DecoderState {
 public:
  DecoderState(const Model<T>& model, Index capacity, int threads)
      : model_(&model),
        context_(threads),
        cache_(model.make_cache(capacity)),
        shared_{&model, {&cache_}, model.rotary()} {
    shared_.rotary.reserve(capacity);
  }
  DecoderState(const DecoderState&) = delete;
  DecoderState& operator=(const DecoderState&) = delete;

  double operations() const { return shared_.operations; }  ///< floating-point operations of all steps so far
  Index kv_bytes() const { return cache_.bytes(); }
  void observe_layers(LayerObserver observer) { observer_ = std::move(observer); }

 protected:
  /// Checks that the step fits; nothing has changed when it throws.
  void check(Index history, std::span<const TokenId> tokens) const {
    check_length(model_->config(), history + std::ssize(tokens));
    if (history + std::ssize(tokens) > cache_.capacity()) {
      detail::fail("a sequence of ", history + std::ssize(tokens), " tokens is out of range 1 to ", cache_.capacity(),
                   ", the capacity of the KV cache");
    }
    model_->check(tokens);
  }

  void observe(const LayerPlan& plan) const {
    if (observer_) observer_(plan);
  }

  std::span<const float> logits(Rows<const T> last) {
    const ModelConfig& config = model_->config();
    logits_.resize(static_cast<std::size_t>(config.vocab));
    const Rows<T> normed = Shared<T>::take(context_, shared_.normed, 1, config.width);
    model_->logits(last, normed, {logits_.data(), 1, config.vocab}, context_.threads());
    return logits_;
  }

  const Model<T>* model_;
  cpu::Context context_;
  KvCache<T> cache_;
  Shared<T> shared_;
  LayerObserver observer_;
  std::vector<float> logits_;
};

/// Dense inference without the library's step: what the lazy decoder is compared with.
template <class T>
class DenseDecoder : public DecoderState<T> {
 public:
  DenseDecoder(const Model<T>& model, Index capacity, int threads) : DecoderState<T>(model, capacity, threads) {}

  /// Runs the next tokens of the sequence and returns the logits of the last one, `[vocab]`, valid until the next step.
  /// Throws `lazyllm::invalid_argument`, and changes nothing, if the sequence gets too long or a token is not in the
  /// vocabulary.
  std::span<const float> step(std::span<const TokenId> tokens) {
    this->check(length_, tokens);
    const Index layers = this->model_->config().layers;
    const Index rows = std::ssize(tokens);
    plan_.start(length_, rows);
    hidden_.reserve(this->context_, rows, this->model_->config().width);
    const Rows<T> hidden = hidden_.rows().subrows(0, rows);
    this->model_->embed(tokens, hidden, this->context_.threads());
    for (Index layer = 0; layer < layers; ++layer) {
      const LayerPlan plan = plan_.layer(layer, layers);
      this->observe(plan);
      AttentionBlock<T>{&this->shared_, layer}.attend(this->context_, plan, hidden);
      const Rows<T> rest = plan.last_rows_only() ? hidden.subrows(rows - 1, 1) : hidden;
      FeedForwardBlock<T>{&this->shared_, layer}.feed_forward(this->context_, rest);
    }
    length_ += rows;
    return this->logits(hidden.subrows(rows - 1, 1));
  }

  Index length() const { return length_; }

  /// Forgets the sequence.
  void clear() { length_ = 0; }

 private:
  PlanBuffers plan_;
  cpu::Context::Buffer<T> hidden_;
  Index length_ = 0;
};

/// The same through the library: prefill and decode with dynamic token pruning.
template <class T>
class LazyDecoder : public DecoderState<T> {
 public:
  using Sequence = cpu::Sequence<T, cpu::PooledStorage>;
  using Pruner = TokenPruner<AnyPolicy>;

  LazyDecoder(const Model<T>& model, Index capacity, int threads, Pruner pruner)
      : DecoderState<T>(model, capacity, threads),
        pruner_(std::move(pruner)),
        sequence_(model.config().layers, model.config().width) {
    for (Index layer = 0; layer < model.config().layers; ++layer) {
      layers_.emplace_back(AttentionBlock<T>{&this->shared_, layer}, FeedForwardBlock<T>{&this->shared_, layer});
    }
  }

  /// As `DenseDecoder::step`.
  std::span<const float> step(std::span<const TokenId> tokens) {
    this->check(length(), tokens);
    this->model_->embed(tokens, step_.begin(this->context_, sequence_, pruner_, std::ssize(tokens)),
                        this->context_.threads());
    for (auto& layer : layers_) {
      this->observe(step_.plan());
      layer.forward(this->context_, step_);
    }
    return this->logits(step_.end());
  }

  Index length() const { return sequence_.length(); }
  const Sequence& sequence() const { return sequence_; }
  const StepStats& stats() const { return step_.stats(); }  ///< of the last step

  /// Forgets the sequence.
  void clear() { sequence_.clear(); }

 private:
  Pruner pruner_;
  Sequence sequence_;
  std::vector<LazyDecoderLayer<AttentionBlock<T>, FeedForwardBlock<T>>> layers_;
  Step<Sequence, Pruner> step_;
};

}  // namespace lazyllm::llama
