#pragma once

#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "examples/llama/model/any_model.hpp"
#include "examples/llama/model/decoder.hpp"
#include "examples/llama/model/log_probabilities.hpp"
#include "examples/llama/model/model.hpp"

namespace llama {

/// Puts a `DenseDecoder` or `LazyDecoder` behind the interface.
template <class Decoder>
class DecoderAdapter final : public AnyDecoder {
 public:
  template <class... Arguments>
  explicit DecoderAdapter(Arguments&&... arguments) : decoder_(std::forward<Arguments>(arguments)...) {}

  std::span<const float> step(Tokens tokens) override { return decoder_.step(tokens); }
  RowsView<const float> step_all(std::span<const Tokens> tokens) override { return decoder_.step_all(tokens); }
  void clear() override { decoder_.clear(); }
  void clear(Index s) override { decoder_.clear(s); }
  void observe_layers(LayerObserver observer) override { decoder_.observe_layers(std::move(observer)); }
  void use_graphs() override {
    if constexpr (is_lazy) {
      decoder_.use_graphs();
    } else {
      fail("graphs: a dense decoder has none");
    }
  }
  Index length(Index s) const override { return decoder_.length(s); }
  double operations() const override { return decoder_.operations(); }
  Index kv_bytes() const override { return decoder_.kv_bytes(); }

  lazyllm::StepStats stats() const override {
    if constexpr (is_lazy) {
      return decoder_.stats();
    } else {
      return {};
    }
  }

  std::span<const lazyllm::Depth> depths([[maybe_unused]] Index s) const override {
    if constexpr (is_lazy) {
      return decoder_.sequence(s).depths();
    } else {
      return {};
    }
  }

  double computed_percent([[maybe_unused]] Index tokens, [[maybe_unused]] Index s) const override {
    if constexpr (is_lazy) {
      return 100 *
             lazyllm::computed_share(depths(s).first(static_cast<std::size_t>(tokens)), decoder_.sequence(s).layers());
    } else {
      return 100;
    }
  }

 private:
  static constexpr bool is_lazy = requires(const Decoder& decoder) { decoder.sequence(0); };

  Decoder decoder_;
};

/// Puts a `Model` behind the interface.
template <class T, class Device>
class ModelAdapter final : public AnyModel {
 public:
  using Execution = typename Device::Execution;

  ModelAdapter(const ModelConfig& config, const WeightSource& weights, Execution execution,
               std::shared_ptr<RankGroup> group = {})
      : execution_(execution), model_(config, weights, execution, std::move(group)) {}

  const ModelConfig& config() const override { return model_.config(); }

  Index kv_bytes(Index tokens) const override {
    const ModelConfig& config = model_.config();
    return 2 * tokens * config.layers * config.kv_heads * config.head_dim * static_cast<Index>(sizeof(T));
  }

  using AnyModel::lazy;

  std::unique_ptr<AnyDecoder> dense(const KvCacheSize& size) const override {
    return std::make_unique<DecoderAdapter<DenseDecoder<T, Device>>>(model_, size, execution_);
  }

  std::unique_ptr<AnyDecoder> lazy(const KvCacheSize& size, std::vector<Pruner> pruners) const override {
    return std::make_unique<DecoderAdapter<LazyDecoder<T, Device>>>(model_, size, execution_, std::move(pruners));
  }

  TokenLogProbabilities log_probabilities(Tokens tokens) const override {
    return token_log_probabilities(model_, tokens, execution_);
  }

 private:
  Execution execution_;
  Model<T, Device> model_;
};

}  // namespace llama
