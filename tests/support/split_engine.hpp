#pragma once

#include <cmath>
#include <functional>
#include <random>
#include <span>
#include <vector>

#include "lazyllm/lazyllm.hpp"

namespace lazyllm::test {

/// An engine that has some of a model's heads: Q and K of each layer are random numbers by position, the same on all
/// ranks, and a rank looks at its own heads only. Hidden states count the layers that they went through.
class SplitEngine {
 public:
  static constexpr Index layers = 6, heads = 12, kv_heads = 6, head_dim = 8, tokens = 80;
  static constexpr Index query_width = heads * head_dim, key_width = kv_heads * head_dim;

  using Sequence = cpu::Sequence<float>;
  using Pruner = TokenPruner<AnyPolicy, ScoreOfRanks>;
  using Step = lazyllm::Step<Sequence, Pruner>;
  using Hook = std::function<void(Index layer)>;  ///< in the attention, where `Ranks` hear of failures

  struct Attention {
    SplitEngine* engine;
    Index layer;

    void attend(cpu::Context&, const LayerPlan& plan, RowsView<float> hidden) {
      const auto work = [&] {
        if (engine->hook) engine->hook(layer);
        std::vector<float>& rows = engine->query_rows;
        rows.clear();
        for (const Position position : plan.positions()) {
          const auto first = engine->queries.begin() + (layer * tokens + position) * query_width;
          rows.insert(rows.end(), first, first + query_width);
        }
        for (Index r = 0; r < hidden.rows; ++r) *hidden.row(r) += 1;
      };
      engine->ranks != nullptr ? engine->ranks->together(work) : work();
    }
    QueryRows<float> queries(const LayerPlan&) const {
      if (engine->score_hook) engine->score_hook(layer);
      return {engine->query_rows.data() + engine->first_kv_head * (heads / kv_heads) * head_dim,
              query_width,
              head_dim,
              engine->own_kv_heads * (heads / kv_heads),
              head_dim,
              1 / std::sqrt(float{head_dim})};
    }
    ContiguousKeys<float> key_view(const LayerPlan&, Index) const {
      return {engine->keys.data() + layer * tokens * key_width + engine->first_kv_head * head_dim, key_width, head_dim,
              engine->own_kv_heads};
    }
  };

  /// The key heads [first, first + count).
  explicit SplitEngine(Ranks* ranks_ = nullptr, Index first = 0, Index count = kv_heads)
      : ranks(ranks_), first_kv_head(first), own_kv_heads(count) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0, 1.5F);
    for (auto* numbers : {&queries, &keys}) {
      numbers->resize(static_cast<std::size_t>(layers * tokens * (numbers == &queries ? query_width : key_width)));
      for (float& number : *numbers) number = normal(random);
    }
    for (Index layer = 0; layer < layers; ++layer) blocks.emplace_back(Attention{this, layer});
    if (ranks != nullptr) ranks->set_share(static_cast<double>(count) / kv_heads);
  }
  SplitEngine(const SplitEngine&) = delete;

  static Sequence sequence() { return {layers, 1}; }

  Pruner pruner(AnyPolicy policy, const AttentionScore& score) const {
    return Pruner(std::move(policy), {score, ranks});
  }

  /// Runs a step and returns the active tokens of each layer, all sequences one after the other.
  std::vector<std::vector<Position>> run(std::span<const Step::Entry> entries) {
    std::vector<std::vector<Position>> active;
    const RowsView<float> rows = step.begin(context, entries);
    std::fill_n(rows.data, rows.rows, 0.0F);
    for (auto& block : blocks) {
      const Positions now = step.plan().keys();
      active.emplace_back(now.begin(), now.end());
      block.forward(context, step);
    }
    const auto output = step.end();
    failures = std::ssize(output.failures);
    return active;
  }

  Ranks* ranks;
  Index first_kv_head, own_kv_heads;
  std::vector<float> queries, keys;  // [layers x tokens x width]
  std::vector<float> query_rows;     // of the running batch
  Hook hook = {}, score_hook = {};
  cpu::Context context;
  std::vector<LazyDecoderLayer<Attention>> blocks;
  Step step;
  Index failures = 0;  // entries of the last step that failed alone
};

}  // namespace lazyllm::test
