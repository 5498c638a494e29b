#pragma once

#include <algorithm>
#include <span>

#include "lazyllm/lazyllm.hpp"

/// The same instantiations in two translation units.
namespace lazyllm::test {

using Sequence = cpu::Sequence<float, cpu::PooledStorage>;
using Pruner = TokenPruner<AnyPolicy>;

struct Block {
  void attend(cpu::Context&, const LayerPlan&, RowsView<float>) {}
  void token_scores(cpu::Context&, const LayerPlan&, std::span<const ScoreWindow> windows) {
    std::ranges::fill(windows.front().scores, 1.0F);
  }
};

/// Runs one step over `layers` layers and returns the (token, layer) pairs computed.
inline Index computed(Sequence& sequence, const Pruner& pruner, Index tokens) {
  cpu::Context context;
  Step<Sequence, Pruner> step;
  const Step<Sequence, Pruner>::Entry entry{&sequence, &pruner, tokens};
  const RowsView<float> rows = step.begin(context, {&entry, 1});
  std::fill_n(rows.data, rows.rows * rows.width, 0.0F);
  LazyDecoderLayer layer{Block()};
  for (Index i = 0; i < sequence.layers(); ++i) layer.forward(context, step);
  step.end();
  return step.stats().computed();
}

Index computed_in_the_other_unit(Sequence& sequence, const Pruner& pruner, Index tokens);

}  // namespace lazyllm::test
