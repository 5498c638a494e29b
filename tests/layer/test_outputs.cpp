#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "support/tiny_engine.hpp"

/// The last rows that come back: of every token that asks for them, whatever is pruned.
using namespace lazyllm;
using namespace lazyllm::test;

namespace {

using Tiny = TinyEngine<>;

const std::vector<Index> prompt{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
const std::vector<Index> turn{9, 7, 9, 3, 2, 3};

/// The logits of every token of the prompt and the turn, one token at a time and without pruning.
std::vector<Vector> singly(Tiny& engine) {
  const Tiny::Pruner dense{KeepAll()};
  Tiny::Request request = engine.request();
  std::vector<Vector> logits;
  for (const auto& tokens : {prompt, turn}) {
    for (const Index token : tokens) logits.push_back(engine.run({{&request, &dense, {token}}}).front().logits.front());
  }
  return logits;
}

}  // namespace

TEST_CASE("outputs: without pruning they are those of one token at a time") {
  Tiny engine;
  const std::vector<Vector> all = singly(engine);
  const Tiny::Pruner dense{KeepAll()};
  for (std::size_t outputs = 0; outputs <= turn.size(); ++outputs) {
    CAPTURE(outputs);
    Tiny::Request request = engine.request();
    const auto first = engine.run({{.request = &request, .pruner = &dense, .tokens = prompt, .outputs = 12}});
    CHECK(first.front().logits == std::vector<Vector>(all.begin(), all.begin() + 12));
    const auto second =
        engine.run({{.request = &request, .pruner = &dense, .tokens = turn, .outputs = static_cast<Index>(outputs)}});
    CHECK(second.front().logits == std::vector<Vector>(all.end() - static_cast<Index>(outputs), all.end()));
    CHECK(request.sequence.steps() == 2);
  }
}

TEST_CASE("outputs: they survive pruning, and are in the active set of every layer") {
  for (const AnyPolicy& policy :
       {AnyPolicy(KeepRatio(Schedule{{1, 0.1}, {3, 0.1}})), AnyPolicy(KeepTopP(Schedule{{1, 0.01}, {4, 0.01}})),
        AnyPolicy(StaticPruning(Schedule{{2, 0.1}}))}) {
    for (Index outputs = 1; outputs <= 12; ++outputs) {
      CAPTURE(outputs);
      Tiny engine;
      const Tiny::Pruner pruner{policy};
      Tiny::Request request = engine.request();
      const auto result =
          engine.run({{.request = &request, .pruner = &pruner, .tokens = prompt, .outputs = outputs}}).front();
      CHECK(std::ssize(result.logits) == outputs);
      for (const auto& active : result.active) {
        for (Index i = 1; i <= outputs; ++i) {
          CHECK(std::ranges::binary_search(active, static_cast<Position>(12 - i)));
        }
      }
      for (Index i = 1; i <= outputs; ++i) CHECK(request.depths()[static_cast<std::size_t>(12 - i)] == 5);
    }
  }
}

TEST_CASE("outputs: drafted tokens have the logits of decode steps where no token is revived") {
  const KeepRatio half(Schedule{{1, 0.5}, {3, 0.5}});
  for (const AnyPolicy& policy :
       {AnyPolicy(KeepComputed<AnyPolicy>{half, 0}), AnyPolicy(StaticPruning(Schedule{{1, 0.5}, {3, 0.5}}))}) {
    Tiny engine;
    const Tiny::Pruner pruner{policy};
    Tiny::Request together = engine.request(), singly = engine.request();
    engine.run({{.request = &together, .pruner = &pruner, .tokens = prompt}});
    engine.run({{.request = &singly, .pruner = &pruner, .tokens = prompt}});
    const auto drafts =
        engine.run({{.request = &together, .pruner = &pruner, .tokens = turn, .outputs = std::ssize(turn)}}).front();
    for (std::size_t i = 0; i < turn.size(); ++i) {
      CAPTURE(i);
      const auto decoded = engine.run({{.request = &singly, .pruner = &pruner, .tokens = {turn[i]}}}).front();
      CHECK(decoded.logits.front() == drafts.logits[i]);
    }
    CHECK(together.depths() == singly.depths());
    CHECK(together.sequence.prompt_end() == std::ssize(prompt));
  }
}

TEST_CASE("outputs: none leave the work and the kept set of one, and no row") {
  Tiny engine;
  const Tiny::Pruner pruner{KeepRatio(Schedule{{1, 0.5}, {3, 0.5}})};
  Tiny::Request none = engine.request(), one = engine.request();
  const auto results = engine.run({{.request = &none, .pruner = &pruner, .tokens = prompt, .outputs = 0},
                                   {.request = &one, .pruner = &pruner, .tokens = prompt}});
  CHECK(results[0].logits.empty());
  CHECK(results[1].logits.size() == 1);
  CHECK(results[0].active == results[1].active);
  CHECK(none.depths() == one.depths());
}

TEST_CASE("outputs: of a batch they stand one after the other, in order of position") {
  Tiny engine;
  const std::vector<Vector> all = singly(engine);
  const Tiny::Pruner dense{KeepAll()};
  Tiny::Request a = engine.request(), b = engine.request(), c = engine.request();
  engine.begin({{.request = &a, .pruner = &dense, .tokens = prompt, .outputs = 3},
                {.request = &b, .pruner = &dense, .tokens = prompt, .outputs = 0},
                {.request = &c, .pruner = &dense, .tokens = prompt, .outputs = 2}});
  for (auto& layer : engine.layers) layer.forward(engine.context, engine.step);
  const StepOutput<float> output = engine.step.end();
  CHECK(std::vector<Index>(output.indptr.begin(), output.indptr.end()) == std::vector<Index>{0, 3, 3, 5});
  CHECK(output.rows.rows == 5);
  CHECK(output.of(1).rows == 0);
  CHECK(output.of(1).data == nullptr);  // not the next entry's row
  CHECK(output.of(1).width == output.rows.width);
  for (Index i = 0; i < 3; ++i) CHECK(engine.model.logits(output.of(0).row(i)) == all[static_cast<std::size_t>(9 + i)]);
  for (Index i = 0; i < 2; ++i) {
    CHECK(engine.model.logits(output.of(2).row(i)) == all[static_cast<std::size_t>(10 + i)]);
  }
}
