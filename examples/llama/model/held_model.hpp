#pragma once

#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "examples/llama/model/any_model.hpp"
#include "examples/llama/model/decoder.hpp"
#include "examples/llama/model/model.hpp"

namespace llama {

/// A decoder behind the interface.
template <class Decoder>
class HeldDecoder final : public AnyDecoder {
 public:
  template <class... Arguments>
  explicit HeldDecoder(Arguments&&... arguments) : decoder_(std::forward<Arguments>(arguments)...) {}

  std::span<const float> step(Tokens tokens) override { return decoder_.step(tokens); }
  RowsView<const float> step_all(std::span<const Tokens> tokens) override { return decoder_.step_all(tokens); }
  void clear() override { decoder_.clear(); }
  void observe_layers(LayerObserver observer) override { decoder_.observe_layers(std::move(observer)); }
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
      return decoder_.sequence(s).computed_percent(tokens);
    } else {
      return 100;
    }
  }

 private:
  static constexpr bool is_lazy = requires(const Decoder& decoder) { decoder.sequence(0); };

  Decoder decoder_;
};

/// A model behind the interface.
template <class T, class Device>
class HeldModel final : public AnyModel {
 public:
  using Execution = typename Device::Execution;

  HeldModel(const ModelConfig& config, const WeightSource& weights, Execution execution)
      : execution_(execution), model_(config, weights, execution) {}

  const ModelConfig& config() const override { return model_.config(); }

  using AnyModel::lazy;

  std::unique_ptr<AnyDecoder> dense(const KvRoom& room) const override {
    return std::make_unique<HeldDecoder<DenseDecoder<T, Device>>>(model_, room, execution_);
  }

  std::unique_ptr<AnyDecoder> lazy(const KvRoom& room, std::vector<Pruner> pruners) const override {
    return std::make_unique<HeldDecoder<LazyDecoder<T, Device>>>(model_, room, execution_, std::move(pruners));
  }

 private:
  Execution execution_;
  Model<T, Device> model_;
};

}  // namespace llama
