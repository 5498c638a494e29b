#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "lazyllm/core.hpp"

namespace lazyllm {

namespace detail {

/// The type of an engine's hidden states.
template <class Engine>
struct HiddenOf {
  using type = float;
};
template <class Engine>
requires requires { typename Engine::value_type; }
struct HiddenOf<Engine> {
  using type = typename Engine::value_type;
};

/// The numbers of a vector of any library.
template <class Numbers>
std::vector<float> to_vector(const Numbers& numbers) {
  return {numbers.data(), numbers.data() + numbers.size()};
}

}  // namespace detail

/// What an engine hands over to be checked: a fresh state of it, with K/V of its own for a number of sequences.
/// Sequence s of a plan is its sequence s.
/// - `layers`: its `LazyDecoderLayer`s, as they run.
/// - `hidden_size`: of its hidden states, which are of type `value_type`, or float if there is no such member.
/// - `embed(context, tokens, positions, rows)` fills row i with the embedding of `tokens[i]`.
/// - `logits(context, row)` returns on the host what follows the last layer, for one row: a vector of any library.
/// - `poison(context, layer, sequence, position)` overwrites K and V of a token in a layer: with NaN, or with what
///   cannot go unnoticed in results.
/// - Optional: `set_request(sequence, request)`, for requests that differ, such as by LoRA adapters: its sequence
///   `sequence` is request `request`, from 0. It is called before anything runs. Without it, all are alike.
/// - Optional: `dense(context, tokens)` returns the logits of the last token by the engine's own dense path. Without
///   it, the layers' blocks run in a plain loop, all tokens at once. It is that of request 0.
/// - Optional: `probabilities(context, plan, sequence, row)` returns, after `attend`, the attention probabilities of a
///   row of the batch: for each query head one for each of the `plan.key_limits()[row]` keys that the row sees.
template <class E, class Context>
concept CheckedEngine = requires(E& engine, Context& context, std::span<const std::int32_t> tokens, Positions positions,
                                 RowsView<typename detail::HiddenOf<E>::type> rows, Index i, Position position) {
  { engine.hidden_size } -> std::convertible_to<Index>;
  engine.layers.begin()->attention();
  engine.embed(context, tokens, positions, rows);
  detail::to_vector(engine.logits(context, rows));
  engine.poison(context, i, i, position);
};

namespace detail {

/// Says at compile time which optional member of a checked engine is there and cannot be called.
template <class E, class Context>
constexpr void check_optional_members() {
  if constexpr (requires { &E::dense; }) {
    static_assert(
        requires(E & engine, Context & context, std::span<const std::int32_t> tokens) {
          to_vector(engine.dense(context, tokens));
        },
        "lazyllm: `dense` of a checked engine must be callable as `dense(Context&, std::span<const std::int32_t>)` and "
        "return a vector");
  }
  if constexpr (requires { &E::set_request; }) {
    static_assert(
        requires(E & engine, Index i) { engine.set_request(i, i); },
        "lazyllm: `set_request` of a checked engine must be callable as `set_request(Index, Index)`");
  }
  if constexpr (requires { &E::probabilities; }) {
    static_assert(
        requires(E & engine, Context & context, const LayerPlan& plan, Index i) {
          to_vector(engine.probabilities(context, plan, i, i));
        },
        "lazyllm: `probabilities` of a checked engine must be callable as `probabilities(Context&, const LayerPlan&, "
        "Index, Index)` and return a vector");
  }
}

/// A fresh state of the engine and its sequences, fed step by step.
template <Backend Context, class Engine>
class CheckRun {
 public:
  using context_type = Context;
  using T = typename HiddenOf<Engine>::type;
  using Sequence = lazyllm::Sequence<AuxCache<OwnStorage<Context, T>>>;
  using Pruner = TokenPruner<AnyPolicy>;
  using Entry = StepEntry<Sequence, Pruner>;

  std::function<void(const LayerPlan&)> before_attend = [](const LayerPlan&) {};
  std::function<void(const LayerPlan&)> after_attend = [](const LayerPlan&) {};

  /// Sequence s is request `first_request + s`.
  template <class Make>
  CheckRun(Context& context, const Make& make, std::vector<std::vector<std::int32_t>> tokens, Index first_request = 0)
      : context_(context), tokens_(std::move(tokens)), engine_(make(std::ssize(tokens_), std::ssize(tokens_.front()))) {
    for (Index s = 0; s < std::ssize(tokens_); ++s) {
      sequences_.emplace_back(layers(), engine_.hidden_size);
      if constexpr (requires { engine_.set_request(s, s); }) engine_.set_request(s, first_request + s);
    }
  }

  Engine& engine() { return engine_; }
  Sequence& sequence(Index s = 0) { return sequences_[to_size(s)]; }
  Index layers() { return std::ssize(engine_.layers); }
  auto& attention(Index layer) { return (engine_.layers.begin() + layer)->attention(); }
  Context& context() { return context_; }

  /// Runs a step of all sequences and returns the logits of the output rows.
  std::vector<float> feed(std::span<Entry> entries) {
    for (Index s = 0; s < std::ssize(entries); ++s) entries[to_size(s)].sequence = &sequence(s);
    const RowsView<T> rows = step_.begin(context_, entries);
    std::vector<std::int32_t> tokens;
    for (Index s = 0; s < step_.plan().sequences(); ++s) {
      for (const Position p : step_.plan().sequence(s).positions) tokens.push_back(tokens_[to_size(s)][to_size(p)]);
    }
    step_.guard([&] { engine_.embed(context_, tokens, step_.plan().positions(), rows); });
    for (auto& layer : engine_.layers) {  // what `LazyDecoderLayer::forward` does
      step_.guard([&] {
        const LayerPlan plan = step_.plan();
        before_attend(plan);
        if (plan.rows() > 0) layer.attention().attend(context_, plan, step_.hidden());
        after_attend(plan);
        step_.advance(context_, layer.attention());
        if (step_.hidden().rows == 0) return;
        run_feed_forward(layer.feed_forward(), context_, step_.row_indptr(), step_.hidden());
      });
    }
    const auto output = step_.end();
    if (!output.failures.empty()) std::rethrow_exception(output.failures.front().error);
    std::vector<float> logits;
    for (Index row = 0; row < output.rows.rows; ++row) {
      const std::vector<float> one = to_vector(engine_.logits(context_, output.rows.subrows(row, 1)));
      logits.insert(logits.end(), one.begin(), one.end());
    }
    return logits;
  }

  /// Runs a step of the first sequence.
  std::vector<float> feed(const Pruner& pruner, Index new_tokens, bool more = false,
                          Index max_rows = Entry::unlimited) {
    Entry entry{.pruner = &pruner, .new_tokens = new_tokens, .more = more, .max_rows = max_rows};
    return feed(std::span(&entry, 1));
  }

  /// The logits of the last of the first sequence's first `count` tokens on the dense path. Uses up the state.
  std::vector<float> dense(Index count) {
    const auto tokens = std::span<const std::int32_t>(tokens_.front()).first(to_size(count));
    if constexpr (requires { engine_.dense(context_, tokens); }) {
      return to_vector(engine_.dense(context_, tokens));
    } else {
      typename Context::template Buffer<T> buffer;
      buffer.reserve(context_, count, engine_.hidden_size);
      const RowsView<T> rows = buffer.rows();
      DensePlan plan;
      plan.start(0, count);
      engine_.embed(context_, tokens, plan.layer(0, layers()).positions(), rows);
      const Index row_indptr[] = {0, count};
      for (auto layer = engine_.layers.begin(); layer != engine_.layers.end(); ++layer) {
        layer->attention().attend(context_, plan.layer(layer - engine_.layers.begin(), layers()), rows);
        run_feed_forward(layer->feed_forward(), context_, std::span<const Index>(row_indptr), rows);
      }
      return to_vector(engine_.logits(context_, rows.subrows(count - 1, 1)));
    }
  }

  /// Poisons the K/V of the first sequence in `layer` at the tokens that `which` names.
  template <class Which>
  void poison(Index layer, const Which& which) {
    for (Position p = 0; p < std::ssize(tokens_.front()); ++p) {
      if (which(p)) engine_.poison(context_, layer, 0, p);
    }
  }

  /// The rows that `attend` has left, on the host, as far as they are read.
  std::vector<float> hidden(const LayerPlan& plan) {
    RowsView<T> rows = step_.hidden();
    if (plan.outputs_only()) rows = rows.subrows(rows.rows - plan.outputs()[0], plan.outputs()[0]);
    std::vector<T> values(to_size(rows.rows * rows.width));
    if (!values.empty()) copy_to_host(context_, RowsView<const T>(rows), values.data());
    std::vector<float> result;
    for (const T& value : values) result.push_back(static_cast<float>(value));
    return result;
  }

  /// The scores of `window` by `block`.
  template <class Block>
  std::vector<float> scores(Block& block, const LayerPlan& plan, ScoreWindow window) {
    std::vector<float> values(plan.sequence(window.sequence).keys.size());
    buffer_ = {};
    buffer_.reserve(context_, 1, std::ssize(values));
    window.scores = {buffer_.rows().data, values.size()};
    score_by_attention(context_, block, plan, std::span<const ScoreWindow>(&window, 1));
    copy_to_host(context_, RowsView<const float>(buffer_.rows()), values.data());
    return values;
  }

  const StepStats& stats() const { return step_.stats(); }

 private:
  Context& context_;
  std::vector<std::vector<std::int32_t>> tokens_;
  Engine engine_;
  std::vector<Sequence> sequences_;
  Step<Sequence, Pruner> step_;
  typename Context::template Buffer<float> buffer_;
};

}  // namespace detail
}  // namespace lazyllm
