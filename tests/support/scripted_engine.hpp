#pragma once

#include <initializer_list>
#include <memory>
#include <vector>

#include "lazyllm/lazyllm.hpp"

namespace lazyllm::test {

/// What the blocks of a `ScriptedEngine` read and note down.
struct Script {
  std::vector<float> scores = std::vector<float>(256, 0.0F);  // by position, the same in every layer
  bool rows_right = true;  // each row had been through every earlier block exactly once, and no block ran for no rows
  Index feed_forward_rows = 0;   // rows that ran through a feed-forward
  std::vector<Position> active;  // of sequence 0 in the layer that ran last
  Index scored_layer = -1;       // the last layer whose scores were asked for
};

/// An attention block without arithmetic. A row is {attention blocks run, feed-forwards run, 100 + position}, so that a
/// row that was lost, mixed up or run twice is seen. Allocates nothing after `Script::active` has grown.
struct ScriptedAttention {
  Script* script;
  Index layer;

  void attend(cpu::Context&, const LayerPlan& plan, RowsView<float> hidden) {
    script->rows_right &= plan.rows() > 0 && plan.rows() == hidden.rows;
    for (Index r = 0; r < plan.rows(); ++r) {
      float* row = hidden.row(r);
      const auto run = static_cast<float>(layer);
      const auto token = static_cast<float>(100 + plan.positions()[static_cast<std::size_t>(r)]);
      script->rows_right &= row[0] == run && row[1] == run && row[2] == token;
      ++row[0];
    }
    const Positions keys = plan.sequence(0).keys;
    script->active.assign(keys.begin(), keys.end());
  }

  void token_scores(cpu::Context&, const LayerPlan& plan, std::span<const ScoreWindow> windows) {
    script->scored_layer = layer;
    for (const ScoreWindow& window : windows) {
      const Positions keys = plan.sequence(window.sequence).keys;
      for (std::size_t i = 0; i < keys.size(); ++i) {
        window.scores[i] = script->scores[static_cast<std::size_t>(keys[i])];
      }
    }
  }
};

struct ScriptedFeedForward {
  Script* script;

  void feed_forward(cpu::Context&, RowsView<float> hidden) {
    script->rows_right &= hidden.rows > 0;
    for (Index r = 0; r < hidden.rows; ++r) ++hidden.row(r)[1];
    script->feed_forward_rows += hidden.rows;
  }
};

/// A host of scripted blocks, for tests of bookkeeping rather than of numbers.
template <class Storage = cpu::OwnStorage<float>>
struct ScriptedEngine {
  using Sequence = lazyllm::Sequence<AuxCache<Storage>>;
  using Pruner = TokenPruner<AnyPolicy>;
  using Step = lazyllm::Step<Sequence, Pruner>;
  using Entry = typename Step::Entry;
  static constexpr Index hidden_size = 3;

  explicit ScriptedEngine(Index layer_count) {
    for (Index layer = 0; layer < layer_count; ++layer) {
      layers.emplace_back(ScriptedAttention{script.get(), layer}, ScriptedFeedForward{script.get()});
    }
  }

  Sequence sequence() const { return Sequence(std::ssize(layers), hidden_size); }

  /// Begins a step and fills the new tokens' rows.
  void begin(std::span<const Entry> entries) {
    const RowsView<float> hidden = step.begin(context, entries);
    for (Index r = 0; r < hidden.rows; ++r) {
      hidden.row(r)[0] = hidden.row(r)[1] = 0;
      hidden.row(r)[2] = static_cast<float>(100 + step.plan().positions()[static_cast<std::size_t>(r)]);
    }
  }

  StepOutput<float> run(std::span<const Entry> entries) {
    begin(entries);
    for (auto& layer : layers) layer.forward(context, step);
    return step.end();
  }

  StepOutput<float> run(std::initializer_list<Entry> entries) {
    return run(std::span(entries.begin(), entries.size()));
  }

  cpu::Context context;
  std::unique_ptr<Script> script = std::make_unique<Script>();
  std::vector<LazyDecoderLayer<ScriptedAttention, ScriptedFeedForward>> layers;
  Step step;
};

}  // namespace lazyllm::test
