#include "lazyllm/lazyllm.hpp"

using namespace lazyllm;

/// Does not compile: the block offers neither scores nor queries and keys.
struct Block {
  void attend(cpu::Context&, const LayerPlan&, RowsView<float>) {}
};

void run(cpu::Context& context) {
  using Sequence = lazyllm::Sequence<AuxCache<cpu::DenseStorage<float>>>;
  using Pruner = TokenPruner<KeepAll>;
  Step<Sequence, Pruner> step;
  LazyDecoderLayer layer{Block()};
  layer.forward(context, step);
}
