#pragma once

#include <span>

#include "examples/llama/model/any_model.hpp"

namespace llama::test {

/// A decoder that does nothing, for tests to override what they need.
class IdleDecoder : public AnyDecoder {
 public:
  std::span<const float> step(Tokens) override { return {}; }
  RowsView<const float> step_all(std::span<const Tokens>) override { return {}; }
  void clear() override {}
  void clear(Index) override {}
  void observe_layers(LayerObserver) override {}
  void use_graphs() override {}
  Index length(Index) const override { return 0; }
  double operations() const override { return 0; }
  Index kv_bytes() const override { return 0; }
  lazyllm::StepStats stats() const override { return {}; }
  std::span<const lazyllm::Depth> depths(Index) const override { return {}; }
  double computed_percent(Index, Index) const override { return 100; }
};

}  // namespace llama::test
