#pragma once

#include <algorithm>
#include <exception>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "lazyllm/lazyllm.hpp"
#include "support/one_sequence.hpp"
#include "support/tiny_model.hpp"

namespace lazyllm::test {

/// Where the blocks of a `TinyEngine` call its hook.
enum class Place { before_attention, after_attention, scores, feed_forward };

/// What a test adds to the blocks of a `TinyEngine`.
struct Hooks {
  std::function<void(Index layer, Place)> at = {};
  /// May change scores that the engine has computed: only with `EngineScores`.
  std::function<void(const LayerPlan&, const ScoreWindow&)> scored = {};

  void call(Index layer, Place place) const {
    if (at) at(layer, place);
  }
};

/// A block whose scores the library computes.
struct LibraryScores : TinyAttention<float> {
  const Hooks* hooks;

  template <class Context>
  void attend(Context& context, const LayerPlan& plan, RowsView<float> hidden) {
    hooks->call(layer, Place::before_attention);
    TinyAttention<float>::attend(context, plan, hidden);
    hooks->call(layer, Place::after_attention);
  }
  QueryRows<float> queries(const LayerPlan& plan) const {
    hooks->call(layer, Place::scores);
    return TinyAttention<float>::queries(plan);
  }
};

/// A block that computes its scores itself, bit for bit as the library does.
struct EngineScores {
  TinyAttention<float> block;
  const Hooks* hooks;

  template <class Context>
  void attend(Context& context, const LayerPlan& plan, RowsView<float> hidden) {
    hooks->call(block.layer, Place::before_attention);
    block.attend(context, plan, hidden);
    hooks->call(block.layer, Place::after_attention);
  }
  template <class Context>
  void token_scores(Context& context, const LayerPlan& plan, std::span<const ScoreWindow> windows) {
    hooks->call(block.layer, Place::scores);
    for (const ScoreWindow& window : windows) {
      const SequencePlan part = plan.sequence(window.sequence);
      score_one(context, block.queries(plan), window.first_row,
                part.key_limits.subspan(static_cast<std::size_t>(window.first_row - part.first_row),
                                        static_cast<std::size_t>(window.rows)),
                block.key_view(plan, window.sequence), part.keys, window.over_rows, window.scores, window.over_heads);
      if (hooks->scored) hooks->scored(plan, window);
    }
  }
};

struct HookedFeedForward : TinyFeedForward<float> {
  const Hooks* hooks;

  template <class Context>
  void feed_forward(Context& context, RowsView<float> hidden) {
    TinyFeedForward<float>::feed_forward(context, hidden);
    hooks->call(layer, Place::feed_forward);
  }
};

/// An engine around the tiny model that a test can disturb and look into.
template <class Block = LibraryScores, class Score = AttentionScore, class Storage = cpu::PooledStorage<float>>
struct TinyEngine {
  using Context = typename Storage::context_type;
  using Sequence = lazyllm::Sequence<AuxCache<Storage>>;
  using Pruner = TokenPruner<AnyPolicy, Score>;
  using Step = lazyllm::Step<Sequence, Pruner>;
  static constexpr Index unlimited = Step::Entry::unlimited;

  /// A sequence with the engine's K/V of it.
  struct Request {
    Sequence sequence;
    TinyCache<float> cache;
    std::vector<Index> tokens = {};  // by position

    std::vector<Depth> depths() const { return {sequence.depths().begin(), sequence.depths().end()}; }
  };

  struct Turn {
    Request* request;
    const Pruner* pruner;
    std::vector<Index> tokens;
    bool more = false;
    Index outputs = 1;
    Index max_rows = unlimited;
  };

  struct Result {
    std::vector<std::vector<Position>> active = {};  // by layer
    std::vector<Vector> logits = {};                 // of the output rows
    std::exception_ptr failure = {};

    bool operator==(const Result& other) const { return active == other.active && logits == other.logits; }
  };

  explicit TinyEngine(TinyShape shape = {.layers = 5}, unsigned seed = 11, Index capacity_ = 64)
      : model(shape, seed), capacity(capacity_) {
    for (Index layer = 0; layer < shape.layers; ++layer) {
      layers.emplace_back(Block{{&model, layer, &batch}, &hooks}, HookedFeedForward{{&model, layer}, &hooks});
    }
  }
  TinyEngine(const TinyEngine&) = delete;

  Request request() const {
    return {Sequence(model.shape().layers, model.shape().hidden_size()), TinyCache<float>(model.shape(), capacity)};
  }
  Request fork(const Request& parent) { return {parent.sequence.fork(context), parent.cache, parent.tokens}; }

  void begin(const std::vector<Turn>& turns) {
    std::vector<typename Step::Entry> entries;
    batch.clear();
    for (const Turn& turn : turns) {
      entries.push_back({.sequence = &turn.request->sequence,
                         .pruner = turn.pruner,
                         .new_tokens = std::ssize(turn.tokens),
                         .more = turn.more,
                         .outputs = turn.outputs,
                         .max_rows = turn.max_rows});
      batch.push_back(&turn.request->cache);
    }
    // Tokens of a step that was given up are not the sequence's: a second try brings them again.
    for (const Turn& turn : turns) {
      std::vector<Index>& known = turn.request->tokens;
      known.resize(static_cast<std::size_t>(turn.request->sequence.length()));
      known.insert(known.end(), turn.tokens.begin(), turn.tokens.end());
    }
    const RowsView<float> hidden = step.begin(context, entries);
    for (std::size_t s = 0; s < turns.size(); ++s) {
      const SequencePlan part = step.plan().sequence(static_cast<Index>(s));
      for (Index r = 0; r < std::ssize(part.positions); ++r) {
        const auto position = static_cast<std::size_t>(part.positions[static_cast<std::size_t>(r)]);
        model.embed(turns[s].request->tokens[position], hidden.row(part.first_row + r));
      }
    }
  }

  /// Runs one step. Adds to `results` what each layer's active tokens were, where there were any.
  void run(const std::vector<Turn>& turns, std::vector<Result>& results) {
    begin(turns);
    results.resize(turns.size());
    for (Result& result : results) result.active.resize(layers.size());
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      const LayerPlan plan = step.plan();
      for (std::size_t s = 0; s < turns.size(); ++s) {
        const Positions keys = plan.sequence(static_cast<Index>(s)).keys;
        if (!keys.empty()) results[s].active[layer].assign(keys.begin(), keys.end());
      }
      layers[layer].forward(context, step);
    }
    const StepOutput<float> output = step.end();
    for (const StepFailure& failure : output.failures) {
      results[static_cast<std::size_t>(failure.entry)].failure = failure.error;
    }
    for (std::size_t s = 0; s < turns.size(); ++s) {
      const RowsView<float> rows = output.of(static_cast<Index>(s));
      for (Index r = 0; r < rows.rows; ++r) results[s].logits.push_back(model.logits(rows.row(r)));
    }
  }

  std::vector<Result> run(const std::vector<Turn>& turns) {
    std::vector<Result> results;
    run(turns, results);
    return results;
  }

  /// Brings the tokens of one turn in chunks of `chunk` and with `max_rows`, in as many steps as that takes.
  Result run_cut(const Turn& turn, Index chunk) {
    std::vector<Result> result;
    Turn part = turn;
    for (Index given = 0; given < std::ssize(turn.tokens) || turn.request->sequence.unfinished(); ++steps) {
      const Index count = std::min(chunk, std::ssize(turn.tokens) - given);
      part.tokens.assign(turn.tokens.begin() + given, turn.tokens.begin() + given + count);
      given += count;
      part.more = given < std::ssize(turn.tokens);
      run({part}, result);
    }
    return result.front();
  }

  TinyModel model;
  Index capacity;
  Context context;
  Hooks hooks;
  TinyBatch<float> batch;
  std::vector<LazyDecoderLayer<Block, HookedFeedForward>> layers;
  Step step;
  Index steps = 0;  // of `run_cut`
};

}  // namespace lazyllm::test
