#include <doctest/doctest.h>
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "examples/contiguous_engine/engine.hpp"
#include "examples/custom_policy/policy.hpp"
#include "support/prompt.hpp"

using namespace contiguous;

TEST_CASE("the user's own policy and score decide what is kept") {
  std::vector<std::uint8_t> punctuation(100, 0);
  for (const int position : {20, 21, 50, 77}) punctuation[position] = 1;
  const auto prompt = lazyllm::test::prompt_of(100);
  Engine engine(lazyllm::KeepAll(), 100);
  const custom::Pruner pruner(custom::KeepPunctuation{&punctuation});
  lazyllm::cpu::Sequence<float> sequence(layer_count, hidden_size);
  lazyllm::Step<decltype(sequence), custom::Pruner> step;

  as_matrix(step.begin(engine.context, sequence, pruner, 100)) = embedding(prompt, Eigen::all);
  engine.layers[0].forward(engine.context, step);
  engine.layers[1].forward(engine.context, step);
  const lazyllm::Positions after = step.plan().keys();
  const std::vector<lazyllm::Position> kept(after.begin(), after.end());

  const AttentionBlock& block = engine.layers[1].attention();
  std::vector<lazyllm::Position> all(100);
  for (lazyllm::Position p = 0; p < 100; ++p) all[p] = p;
  const Row p = block.probabilities(99, all);
  std::vector<std::pair<float, lazyllm::Position>> ranked;
  std::vector<lazyllm::Position> expected;
  for (const lazyllm::Position position : all) {
    if (position < 4 || position == 99 || punctuation[position] != 0) {
      expected.push_back(position);
    } else {
      ranked.emplace_back(-p[position] * block.value_cache.row(position).norm(), position);
    }
  }
  std::ranges::sort(ranked);
  for (std::size_t i = 0; expected.size() < 50; ++i) expected.push_back(ranked[i].second);
  std::ranges::sort(expected);
  CHECK(kept == expected);

  for (Index layer = 2; layer < layer_count; ++layer) engine.layers[layer].forward(engine.context, step);
  step.end();
  for (Index position = 0; position < 100; ++position) {
    if (punctuation[position] != 0) CHECK(sequence.depths()[position] == layer_count);
  }
  CHECK(std::ranges::count(sequence.depths(), layer_count) == 25);
}
