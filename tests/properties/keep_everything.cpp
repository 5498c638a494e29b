#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "lazyllm/lazyllm.hpp"
#include "support/tiny_model.hpp"

using namespace lazyllm;
using namespace lazyllm::test;

namespace {

using Pruner = TokenPruner<AnyPolicy>;
using LazySequence = cpu::Sequence<float>;

constexpr Index capacity = 64;
constexpr TinyShape shape{.layers = 5};

/// An engine's dense path: the same blocks in a plain loop.
std::vector<Vector> run_dense(const TinyModel& model, const std::vector<std::vector<Index>>& steps) {
  TinyCache<float> cache(shape, capacity);
  const TinyBatch<float> batch{&cache};
  cpu::Context context;
  DensePlan plan;
  Index history = 0;
  std::vector<Vector> logits;
  for (const auto& tokens : steps) {
    const DensePlan::Extent extent{history, std::ssize(tokens)};
    plan.start({&extent, 1});
    Vector rows(tokens.size() * static_cast<std::size_t>(shape.hidden_size()));
    const RowsView<float> hidden(rows.data(), std::ssize(tokens), shape.hidden_size());
    for (Index r = 0; r < hidden.rows; ++r) model.embed(tokens[static_cast<std::size_t>(r)], hidden.row(r));
    for (Index layer = 0; layer < shape.layers; ++layer) {
      TinyAttention<float>{&model, layer, &batch}.attend(context, plan.layer(layer, shape.layers), hidden);
      TinyFeedForward<float>{&model, layer}.feed_forward(context, hidden);
    }
    logits.push_back(model.logits(hidden.row(hidden.rows - 1)));
    history += std::ssize(tokens);
  }
  return logits;
}

/// Every given policy on a sequence of its own, all in one batch: `[policy][step]` logits.
std::vector<std::vector<Vector>> run_lazy(const TinyModel& model, const std::vector<AnyPolicy>& policies,
                                          const std::vector<std::vector<Index>>& steps) {
  std::vector<TinyCache<float>> caches(policies.size(), TinyCache<float>(shape, capacity));
  std::vector<LazySequence> sequences;
  std::vector<Pruner> pruners;
  TinyBatch<float> batch;
  for (std::size_t s = 0; s < policies.size(); ++s) {
    batch.push_back(&caches[s]);
    sequences.emplace_back(shape.layers, shape.hidden_size());
    pruners.emplace_back(policies[s]);
  }
  std::vector<LazyDecoderLayer<TinyAttention<float>, TinyFeedForward<float>>> layers;
  for (Index layer = 0; layer < shape.layers; ++layer) {
    layers.emplace_back(TinyAttention<float>{&model, layer, &batch}, TinyFeedForward<float>{&model, layer});
  }
  cpu::Context context(2);
  Step<LazySequence, Pruner> step;
  std::vector<std::vector<Vector>> logits(policies.size());
  for (const auto& tokens : steps) {
    std::vector<Step<LazySequence, Pruner>::Entry> entries;
    for (std::size_t s = 0; s < policies.size(); ++s)
      entries.push_back({&sequences[s], &pruners[s], std::ssize(tokens)});
    const RowsView<float> rows = step.begin(context, entries);
    for (Index r = 0; r < rows.rows; ++r) {
      model.embed(tokens[static_cast<std::size_t>(r) % tokens.size()], rows.row(r));
    }
    for (auto& layer : layers) layer.forward(context, step);
    const StepOutput<float> output = step.end();
    for (std::size_t s = 0; s < policies.size(); ++s)
      logits[s].push_back(model.logits(output.of(static_cast<Index>(s)).row(0)));
  }
  return logits;
}

const std::vector<AnyPolicy> keep_everything = {KeepAll(),
                                                KeepRatio(Schedule{{1, 1.0}, {4, 1.0}}),
                                                KeepTopP(Schedule{{1, 1.0}, {2, 1.0}}),
                                                StaticPruning(Schedule{{2, 1.0}}),
                                                ReviveAtMost<KeepRatio>{KeepRatio(Schedule{{1, 1.0}}), 0},
                                                ProtectFirst<KeepRatio>{KeepRatio(Schedule{{1, 0.2}}), capacity},
                                                ProtectLast<KeepRatio>{KeepRatio(Schedule{{3, 0.2}}), capacity},
                                                MinTokens<PaperPolicy>{{}, capacity + 1}};

std::vector<Index> random_tokens(std::mt19937& random, Index count) {
  std::vector<Index> tokens(static_cast<std::size_t>(count));
  for (Index& token : tokens) token = std::uniform_int_distribution<Index>(0, shape.vocab - 1)(random);
  return tokens;
}

}  // namespace

TEST_CASE("every policy that keeps everything equals the dense loop bit for bit, alone and in a batch") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const TinyModel model(shape, seed);
    const std::vector<std::vector<Index>> steps = {random_tokens(random, 23), random_tokens(random, 1),
                                                   random_tokens(random, 1), random_tokens(random, 9),
                                                   random_tokens(random, 1)};
    const std::vector<Vector> dense = run_dense(model, steps);
    for (const auto& logits : run_lazy(model, keep_everything, steps)) CHECK(logits == dense);
    for (const AnyPolicy& policy : keep_everything) CHECK(run_lazy(model, {policy}, steps).front() == dense);
  }
}

TEST_CASE("splitting a prompt into steps changes nothing where nothing is pruned") {
  std::mt19937 random(7);
  const TinyModel model(shape, 7);
  const std::vector<Index> prompt = random_tokens(random, 40);
  const Vector whole = run_dense(model, {prompt}).back();
  for (const Index cut : {1, 2, 19, 39}) {
    const std::vector<std::vector<Index>> parts = {{prompt.begin(), prompt.begin() + cut},
                                                   {prompt.begin() + cut, prompt.end()}};
    CHECK(run_lazy(model, {KeepAll()}, parts).front().back() == whole);
  }
  std::vector<std::vector<Index>> singly;
  for (const Index token : prompt) singly.push_back({token});
  CHECK(run_lazy(model, {KeepAll()}, singly).front().back() == whole);
}

TEST_CASE("a prefix whose K/V the engine has already is taken over") {
  std::mt19937 random(8);
  const TinyModel model(shape, 8);
  const std::vector<Index> prefix = random_tokens(random, 20);
  const std::vector<Index> question = random_tokens(random, 6);
  TinyCache<float> cache(shape, capacity);
  TinyBatch<float> batch{&cache};
  std::vector<LazyDecoderLayer<TinyAttention<float>, TinyFeedForward<float>>> layers;
  for (Index layer = 0; layer < shape.layers; ++layer) {
    layers.emplace_back(TinyAttention<float>{&model, layer, &batch}, TinyFeedForward<float>{&model, layer});
  }
  cpu::Context context;
  Step<LazySequence, Pruner> step;
  const auto run = [&](LazySequence& sequence, const Pruner& pruner, const std::vector<Index>& tokens) {
    const Step<LazySequence, Pruner>::Entry entry{&sequence, &pruner, std::ssize(tokens)};
    const RowsView<float> rows = step.begin(context, {&entry, 1});
    for (Index r = 0; r < rows.rows; ++r) model.embed(tokens[static_cast<std::size_t>(r)], rows.row(r));
    for (auto& layer : layers) layer.forward(context, step);
    return model.logits(step.end().of(0).row(0));
  };
  const auto empty = [] { return LazySequence(shape.layers, shape.hidden_size()); };
  LazySequence first = empty();
  run(first, Pruner(KeepAll()), prefix);
  LazySequence second = empty();
  second.append_computed(std::ssize(prefix));
  const Pruner half(KeepRatio(Schedule{{2, 0.5}}));
  LazySequence continued = first.fork(context);
  TinyCache<float> copy = cache;
  const Vector expected = run(continued, half, question);
  cache = copy;
  CHECK(run(second, half, question) == expected);
  CHECK(step.stats().layers[2].computed > 0);
  CHECK(step.stats().layers[2].computed <= 6);
  CHECK(step.stats().layers[2].active == 13);
}
