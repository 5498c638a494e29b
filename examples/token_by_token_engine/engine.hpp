#pragma once
// What makes the engine of transformer.hpp lazy: the loop over the layers goes outside, the loop over the tokens inside
// the blocks. No kernel for several tokens is needed.
#include <algorithm>
#include <cstdint>
#include <lazyllm/lazyllm.hpp>
#include <span>
#include <utility>
#include <vector>

#include "transformer.hpp"

namespace token_by_token {

// [integration]
struct AttentionBlock {
  Transformer* model;
  Index layer;

  void attend(lazyllm::cpu::Context&, const lazyllm::LayerPlan& plan, lazyllm::RowsView<float> hidden) {
    for (Index r = 0; r < plan.rows(); ++r) {
      model->attention(layer, hidden.row(r), plan.positions()[r], plan.keys().first(plan.key_limits()[r]));
    }
  }
  Index max_queries() const { return 1; }  // Q of the last row is all that is kept
  lazyllm::QueryRows<float> queries(const lazyllm::LayerPlan&) const {
    return {model->q.data(), /*row_stride=*/0, /*head_stride=*/head_dim, heads, head_dim, scale};
  }
  lazyllm::ContiguousKeys<float> key_view(const lazyllm::LayerPlan&, Index /*sequence*/) const {
    return {model->key_cache[layer].data(), /*position_stride=*/dim, /*head_stride=*/head_dim, /*kv_heads=*/heads};
  }
};

struct FeedForwardBlock {
  Transformer* model;
  Index layer;

  void feed_forward(lazyllm::cpu::Context&, lazyllm::RowsView<float> hidden) {
    for (Index r = 0; r < hidden.rows; ++r) model->feed_forward(layer, hidden.row(r));
  }
};

struct Engine {
  Engine(lazyllm::AnyPolicy policy, Index seq_len) : model(seq_len), pruner(std::move(policy)) {
    for (Index layer = 0; layer < layer_count; ++layer) {
      layers.emplace_back(AttentionBlock{&model, layer}, FeedForwardBlock{&model, layer});
    }
  }
  Engine(const Engine&) = delete;

  const Floats& forward(std::span<const std::int32_t> tokens) {  // the whole prompt, then token by token
    embed(tokens, step.begin(context, sequence, pruner, std::ssize(tokens)));
    for (auto& layer : layers) layer.forward(context, step);
    return model.head(step.end().rows.row(0));
  }

  static void embed(std::span<const std::int32_t> tokens, lazyllm::RowsView<float> rows) {
    for (Index r = 0; r < rows.rows; ++r) std::copy_n(&embedding[tokens[r] * dim], dim, rows.row(r));
  }

  Transformer model;
  std::vector<lazyllm::LazyDecoderLayer<AttentionBlock, FeedForwardBlock>> layers;
  lazyllm::TokenPruner<lazyllm::AnyPolicy> pruner;
  lazyllm::cpu::Sequence<float> sequence{layer_count, dim};
  lazyllm::Step<decltype(sequence), decltype(pruner)> step;
  lazyllm::cpu::Context context;
};
// [integration-end]

}  // namespace token_by_token
