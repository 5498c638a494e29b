#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "examples/llama/library.hpp"
#include "examples/llama/model/blocks.hpp"
#include "examples/llama/model/kv_caches.hpp"
#include "examples/llama/model/layer_observer.hpp"
#include "examples/llama/model/model.hpp"
#include "examples/llama/token_ids.hpp"

namespace llama {

/// Whether a device can replay work as graphs.
template <class Device>
inline constexpr bool has_graphs = requires {
  typename Device::template Graphs<int>;
};

/// Its graphs; an empty type without any.
template <class Device, class Value>
struct GraphsOf {
  using type = std::monostate;
};
template <class Device, class Value>
requires has_graphs<Device>
struct GraphsOf<Device, Value> {
  using type = typename Device::template Graphs<Value>;
};

/// What both decoders have: the caches of one or more sequences and the buffers that a forward pass needs.
template <class T, class Device = CpuDevice>
class DecoderState {
 public:
  using Context = typename Device::Context;
  using Execution = typename Device::Execution;

  DecoderState(const Model<T, Device>& model, const KvCacheSize& size, Execution execution)
      : model_(&model), context_(execution), size_(size), resources_(context_, model, size) {
    logits_.reserve(context_, size.sequences, model.config().vocab);
  }
  DecoderState(const DecoderState&) = delete;
  DecoderState& operator=(const DecoderState&) = delete;

  double operations() const { return resources_.operations; }  ///< floating-point operations of all steps so far
  const KvCacheSize& size() const { return size_; }
  Index kv_bytes() const { return resources_.caches.bytes(); }  ///< of all sequences
  void observe_layers(LayerObserver observer) { observer_ = std::move(observer); }

 protected:
  /// Checks that the step fits, joins its tokens and lists the sequences that have some; nothing else has changed when
  /// it throws. `history(s)` is the length of sequence s.
  template <class History>
  void start(std::span<const Tokens> tokens, const History& history) {
    if (std::ssize(tokens) != size_.sequences) {
      fail("a step of ", tokens.size(), " sequences, the decoder has ", size_.sequences);
    }
    tokens_.clear();
    running_.clear();
    for (Index s = 0; s < size_.sequences; ++s) {
      const Tokens own = tokens[static_cast<std::size_t>(s)];
      if (own.empty()) continue;
      const Index length = history(s) + std::ssize(own);
      check_length(model_->config(), length);
      if (length > size_.capacity) {
        fail("a sequence of ", length, " tokens is out of range 1 to ", size_.capacity,
             ", the capacity of the KV cache");
      }
      model_->check(own);
      tokens_.insert(tokens_.end(), own.begin(), own.end());
      running_.push_back(s);
    }
    if (running_.empty()) fail("a step has 0 tokens, at least 1 is needed");
    resources_.caches.use(running_);
  }

  void observe(const lazyllm::LayerPlan& plan) const {
    if (observer_) observer_(plan);
  }

  /// `last` `[sequences of the step x hidden_size]` to logits in host memory.
  RowsView<const float> logits(RowsView<const T> last) {
    const RowsView<T> normed = resources_.take(context_, resources_.normed, last.rows, model_->config().hidden_size);
    const RowsView<float> logits = logits_.rows().subrows(0, last.rows);
    model_->logits(context_, last, normed, logits);
    return Device::download(context_, logits);
  }

  static std::span<const float> first(RowsView<const float> logits) {
    return {logits.data, static_cast<std::size_t>(logits.width)};
  }

  const Model<T, Device>* model_;
  Context context_;
  KvCacheSize size_;
  BlockResources<T, Device> resources_;
  std::vector<TokenId> tokens_;  // of the step, all sequences one after the other
  std::vector<Index> running_;   // the sequences of the step
  LayerObserver observer_;
  typename Context::template Buffer<float> logits_;
};

/// Dense inference without the library's step: what the lazy decoder is compared with.
template <class T, class Device = CpuDevice>
class DenseDecoder : public DecoderState<T, Device> {
 public:
  /// `execution` as for the model. Throws `lazyllm::cuda_error` without device memory.
  DenseDecoder(const Model<T, Device>& model, const KvCacheSize& size, typename Device::Execution execution)
      : DecoderState<T, Device>(model, size, execution), lengths_(static_cast<std::size_t>(size.sequences), 0) {}

  /// Runs the next tokens of the one sequence and returns the logits of the last one, `[vocab]`, valid until the next
  /// step. Throws `std::invalid_argument`, and changes nothing, if the sequence gets too long or a token is not in
  /// the vocabulary, `lazyllm::cuda_error` without device memory; the sequence is then as before the step.
  std::span<const float> step(Tokens tokens) { return this->first(step_all({&tokens, 1})); }

  /// The same for several sequences at once: `tokens` has a list for each sequence of the decoder; those whose list is
  /// empty are not in the step. The logits `[sequences of the step x vocab]`. Throws `std::invalid_argument`, too,
  /// unless there is one list of tokens for each sequence.
  RowsView<const float> step_all(std::span<const Tokens> tokens) {
    this->start(tokens, [&](Index s) { return length(s); });
    const ModelConfig& config = this->model_->config();
    extents_.clear();
    for (const Index s : this->running_) {
      extents_.push_back({length(s), std::ssize(tokens[static_cast<std::size_t>(s)])});
    }
    plan_.start(extents_);
    const RowsView<T> hidden =
        this->resources_.take(this->context_, hidden_, std::ssize(this->tokens_), config.hidden_size);
    this->model_->embed(this->context_, this->tokens_, hidden);
    RowsView<T> rest = hidden;
    for (Index layer = 0; layer < config.layers; ++layer) {
      const lazyllm::LayerPlan plan = plan_.layer(layer, config.layers);
      this->observe(plan);
      AttentionBlock<T, Device>{&this->resources_, layer}.attend(this->context_, plan, hidden);
      if (plan.outputs_only())
        rest = this->resources_.output_rows(this->context_, plan, hidden, this->resources_.last_hidden);
      FeedForwardBlock<T, Device>{&this->resources_, layer}.feed_forward(this->context_, rest);
    }
    const RowsView<const float> logits = this->logits(rest);
    for (std::size_t s = 0; s < tokens.size(); ++s) lengths_[s] += std::ssize(tokens[s]);
    return logits;
  }

  Index length(Index s = 0) const { return lengths_[static_cast<std::size_t>(s)]; }

  /// Forgets all sequences.
  void clear() { lengths_.assign(lengths_.size(), 0); }
  /// Forgets one.
  void clear(Index s) { lengths_[static_cast<std::size_t>(s)] = 0; }

 private:
  std::vector<Index> lengths_;
  std::vector<lazyllm::DensePlan::Extent> extents_;
  lazyllm::DensePlan plan_;
  typename Device::Context::template Buffer<T> hidden_;
};

/// The same through the library: prefill and decode with dynamic token pruning.
template <class T, class Device = CpuDevice>
class LazyDecoder : public DecoderState<T, Device> {
 public:
  using Sequence = typename Device::template Sequence<T>;
  using Pruner = lazyllm::TokenPruner<lazyllm::AnyPolicy>;

  /// `pruner` is that of all sequences. Throws `lazyllm::cuda_error` without device memory.
  LazyDecoder(const Model<T, Device>& model, const KvCacheSize& size, typename Device::Execution execution,
              const Pruner& pruner)
      : LazyDecoder(model, size, execution, std::vector<Pruner>(static_cast<std::size_t>(size.sequences), pruner)) {}

  /// With a pruner for each sequence.
  LazyDecoder(const Model<T, Device>& model, const KvCacheSize& size, typename Device::Execution execution,
              const std::vector<Pruner>& pruners)
      : DecoderState<T, Device>(model, size, execution) {
    if (std::ssize(pruners) != size.sequences) {
      fail(pruners.size(), " pruners for ", size.sequences, " sequences");
    }
    lazyllm::Ranks* const ranks = model.group() != nullptr ? &model.group()->ranks() : nullptr;
    for (const Pruner& pruner : pruners) pruners_.emplace_back(pruner.policy(), RankScore{pruner.score(), ranks});
    const ModelConfig& config = model.config();
    for (std::size_t s = 0; s < pruners_.size(); ++s) sequences_.emplace_back(config.layers, config.hidden_size);
    continuations_.resize(pruners_.size());
    for (Index layer = 0; layer < config.layers; ++layer) {
      layers_.emplace_back(AttentionBlock<T, Device>{&this->resources_, layer},
                           FeedForwardBlock<T, Device>{&this->resources_, layer});
    }
  }

  /// As `DenseDecoder::step`.
  std::span<const float> step(Tokens tokens) { return this->first(step_all({&tokens, 1})); }

  /// As `DenseDecoder::step_all`. Throws what fails one sequence, such as a score that is not a finite number; then all
  /// are what they were before the step.
  RowsView<const float> step_all(std::span<const Tokens> tokens) {
    this->start(tokens, [&](Index s) { return length(s); });
    entries_.clear();
    for (const Index running : this->running_) {
      const auto s = static_cast<std::size_t>(running);
      entries_.push_back({.sequence = &sequences_[s],
                          .pruner = &pruners_[s],
                          .new_tokens = std::ssize(tokens[s]),
                          .continuations = continuations_[s].find(sequences_[s].length(), tokens[s])});
    }
    if (RankGroup* const group = this->model_->group()) group->ranks().set_share(this->model_->head_share());
    const RowsView<T> embeddings = step_.begin(this->context_, entries_);
    RowsView<const float> logits;
    step_.guard([&] {
      this->model_->embed(this->context_, this->tokens_, embeddings);
      if (uses_graphs_) {
        run_segments();
      } else {
        run_layers(std::ssize(layers_) - 1);
      }
      if (!step_.failures().empty()) std::rethrow_exception(step_.failures().front().error);
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
  /// Forgets one.
  void clear(Index s) { sequences_[static_cast<std::size_t>(s)].clear(); }

  /// Whether the layers between two pruning layers of a decode step are a graph each from now on. Throws
  /// `std::invalid_argument` on a device without graphs.
  void use_graphs(bool use = true) {
    if (!has_graphs<Device>) fail("graphs: the device has none");
    uses_graphs_ = use;
  }

 private:
  using RankScore = lazyllm::ScoreOfRanks;
  using RankPruner = lazyllm::TokenPruner<lazyllm::AnyPolicy, RankScore>;
  using LayerStep = lazyllm::Step<Sequence, RankPruner>;

  /// What a replayed segment leaves on the host.
  struct Replayed {
    double linear_operations = 0;
    RowsView<T> queries;  // of the last layer
  };

  /// Runs the layers from the next one to `last`.
  void run_layers(Index last) {
    for (Index layer = step_.plan().layer(); layer <= last; ++layer) {
      this->observe(step_.plan());
      layers_[static_cast<std::size_t>(layer)].forward(this->context_, step_);
    }
  }

  void feed_forward(Index layer) {
    const RowsView<T> rows = step_.hidden();
    if (rows.rows > 0) layers_[static_cast<std::size_t>(layer)].feed_forward().feed_forward(this->context_, rows);
  }

  /// Runs all layers, those of a segment as a graph where its work repeats: a few rows, of which no layer but the last
  /// is scored. The graph begins with the feed-forward of the layer before and, where the last layer prunes, ends with
  /// its attention.
  void run_segments() {
    if constexpr (has_graphs<Device>) {
      const Index count = std::ssize(layers_);
      bool owes_feed_forward = false;
      for (Index layer = 0; layer < count;) {
        const auto segment = step_.segment();
        const lazyllm::LayerPlan plan = step_.plan();
        Index end = segment.last + 1;
        if (end == count && !this->resources_.all_are_outputs(plan)) --end;  // it has other queries
        const bool repeats = plan.rows() > 0 && plan.rows() <= max_graph_rows && segment.scored_from + 1 >= end;
        if (layer == end || !repeats) {
          if (owes_feed_forward) feed_forward(layer - 1);
          owes_feed_forward = false;
          run_layers(segment.last);
          layer = segment.last + 1;
          continue;
        }
        run_graph(plan, owes_feed_forward, end, !segment.rows_change);
        owes_feed_forward = segment.rows_change;
        for (; layer < end; ++layer) {
          this->observe(step_.plan());
          step_.advance(this->context_, layers_[static_cast<std::size_t>(layer)].attention());
        }
      }
    }
  }

  /// Runs the layers from the one of `plan` to `end`, without it.
  void run_graph(const lazyllm::LayerPlan& plan, bool owes_feed_forward, Index end, bool with_feed_forward) {
    auto& resources = this->resources_;
    resources.plan.update(this->context_, plan, resources.caches.views());
    const RowsView<T> hidden = step_.hidden();
    std::vector<std::uint64_t> key;
    for (const Index number : {plan.layer(), end, Index{owes_feed_forward}, Index{with_feed_forward}, hidden.rows}) {
      key.push_back(static_cast<std::uint64_t>(number));
    }
    key.push_back(reinterpret_cast<std::uintptr_t>(hidden.data));
    resources.identify(this->context_, key);
    const double before = resources.operations;
    const double attention = static_cast<double>(end - plan.layer()) * resources.attention_operations(plan);
    auto& last = layers_[static_cast<std::size_t>(end - 1)].attention();
    const Replayed& replayed = graphs_.run(this->context_, key, [&] {
      const double begin = resources.operations;
      if (owes_feed_forward) feed_forward(plan.layer() - 1);
      for (Index layer = plan.layer(); layer < end; ++layer) {
        layers_[static_cast<std::size_t>(layer)].attention().attend(this->context_, plan, hidden);
        if (layer + 1 < end || with_feed_forward) feed_forward(layer);
      }
      return Replayed{resources.operations - begin - attention, last.query_rows()};
    });
    resources.operations = before + replayed.linear_operations + attention;
    last.set_query_rows(replayed.queries);
  }

  /// Prompts fill the device: what a graph spares is nothing to them.
  static constexpr Index max_graph_rows = 64;

  std::vector<RankPruner> pruners_;
  std::vector<Sequence> sequences_;
  std::vector<lazyllm::Continuations> continuations_;  // of each sequence
  std::vector<lazyllm::LazyDecoderLayer<AttentionBlock<T, Device>, FeedForwardBlock<T, Device>>> layers_;
  std::vector<typename LayerStep::Entry> entries_;
  LayerStep step_;
  [[no_unique_address]] typename GraphsOf<Device, Replayed>::type graphs_;
  bool uses_graphs_ = false;
};

}  // namespace llama
