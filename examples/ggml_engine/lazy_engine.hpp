#pragma once
// All that is there because of LazyLLM, together with the parts of forward.cpp between the marks `[scores]`: the copy
// that keeps Q, and the graph of its attention probabilities.
#include <algorithm>
#include <cstdint>
#include <lazyllm/lazyllm.hpp>
#include <span>
#include <utility>
#include <vector>

#include "examples/ggml_engine/dense_engine.hpp"
#include "examples/ggml_engine/forward.hpp"

namespace ggml_engine {

using Pruner = lazyllm::TokenPruner<lazyllm::AnyPolicy>;

// [scored]
/// The plan of an engine of one sequence.
inline Attended attended(const lazyllm::LayerPlan& plan) {
  return {plan.positions(), plan.keys(), plan.key_limits(), plan.outputs()[0]};
}

/// What scores the tokens of a layer, from the Q that its graph has kept.
struct Scored {
  Forward* forward;
  Index layer;

  void token_scores(lazyllm::cpu::Context&, const lazyllm::LayerPlan& plan,
                    std::span<const lazyllm::ScoreWindow> windows) {
    const lazyllm::ScoreWindow& window = windows.front();  // one sequence
    const std::span<float> scores = window.scores;
    const Index first_kept = plan.rows() - std::min(forward->room().queries, plan.rows());
    const Heads heads = window.over_heads == lazyllm::Reduce::max ? Heads::max : Heads::mean;
    const auto rows = forward->probabilities(layer, window.first_row - first_kept, window.rows, heads, attended(plan));
    for (std::size_t key = 0; key < scores.size(); ++key) {
      float score = 0;
      for (std::size_t i = key; i < rows.size(); i += scores.size()) {
        score = window.over_rows == lazyllm::Reduce::max ? std::max(score, rows[i]) : score + rows[i];
      }
      scores[key] = window.over_rows == lazyllm::Reduce::max ? score : score / static_cast<float>(window.rows);
    }
  }
};
// [scored-end]

class LazyEngine {
 public:
  LazyEngine(const Model& model, Room room, Pruner pruner)
      : forward_(model, with_queries(room, pruner)), pruner_(std::move(pruner)), context_(room.threads) {
    for (Index l = 0; l < model.shape().layers; ++l) layers_.push_back({&forward_, l});
  }
  LazyEngine(const LazyEngine&) = delete;

  /// Runs the next tokens, one graph for each segment. Returns the logits after the last one.
  std::vector<float> run(std::span<const std::int32_t> tokens);

  /// Forgets all tokens.
  void clear() { sequence_.clear(); }
  Forward& forward() { return forward_; }
  const lazyllm::StepStats& stats() const { return step_.stats(); }
  const lazyllm::cpu::Sequence<float>& sequence() const { return sequence_; }

 private:
  using Step = lazyllm::Step<lazyllm::cpu::Sequence<float>, Pruner>;

  static Room with_queries(Room room, const Pruner& pruner) {
    room.queries = std::min(pruner.score().last_queries, room.context);
    return room;
  }

  Forward forward_;
  Pruner pruner_;
  std::vector<Scored> layers_;
  lazyllm::cpu::Sequence<float> sequence_{forward_.shape().layers, forward_.shape().hidden_size};
  lazyllm::Continuations continuations_;
  Step step_;
  lazyllm::cpu::Context context_;
};

// [segments]
inline std::vector<float> LazyEngine::run(std::span<const std::int32_t> tokens) {
  check_room(forward_.room(), sequence_.length(), std::ssize(tokens));
  const Step::Entry entry{.sequence = &sequence_,
                          .pruner = &pruner_,
                          .new_tokens = std::ssize(tokens),
                          .continuations = continuations_.find(sequence_.length(), tokens)};
  const auto embeddings = step_.begin(context_, {&entry, 1});
  step_.guard([&] { forward_.embed(tokens, embeddings.data); });
  bool cut = false;  // whether the feed-forward of the layer before has yet to run
  for (Index layer = 0; layer < std::ssize(layers_);) {
    const auto segment = step_.segment();
    step_.guard([&] {
      if (step_.plan().rows() > 0) {
        const Blocks blocks{2 * segment.first - (cut ? 1 : 0), 2 * segment.last + (segment.rows_change ? 1 : 2)};
        forward_.run(blocks, attended(step_.plan()), step_.hidden().data);
      }
      for (; layer <= segment.last; ++layer) step_.advance(context_, layers_[static_cast<std::size_t>(layer)]);
    });
    cut = segment.rows_change;
  }
  const auto output = step_.end();
  return forward_.logits(output.rows.data, output.rows.rows);
}
// [segments-end]

}  // namespace ggml_engine
