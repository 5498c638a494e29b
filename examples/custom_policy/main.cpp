// Runs the layers of the contiguous engine with the policy and the score of policy.hpp.
#include <cctype>
#include <cstdint>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "../contiguous_engine/engine.hpp"
#include "policy.hpp"

using contiguous::as_matrix, contiguous::Index;

int main() {
  std::string text;  // a character is a token
  while (text.size() < 300) text += "Call me Ishmael. Some years ago - never mind how long precisely - I sailed; ";
  const std::size_t prompt = text.size();
  std::vector<std::uint8_t> punctuation;
  contiguous::Engine engine(lazyllm::KeepAll(), /*capacity=*/400);  // of which this program uses the layers
  const custom::Pruner pruner(custom::KeepPunctuation{&punctuation});
  lazyllm::cpu::Sequence<float> sequence(contiguous::layer_count, contiguous::hidden_size);
  lazyllm::Step<decltype(sequence), custom::Pruner> step;

  while (text.size() < prompt + 16) {
    while (punctuation.size() < text.size()) punctuation.push_back(std::ispunct(text[punctuation.size()]) != 0);
    const std::span tokens = std::span(text).subspan(sequence.length());
    as_matrix(step.begin(engine.context, sequence, pruner, std::ssize(tokens))) =
        contiguous::embedding(tokens, Eigen::all);
    for (auto& layer : engine.layers) layer.forward(engine.context, step);
    Index next = 0;
    contiguous::logits(as_matrix(step.end().rows)).head(128).maxCoeff(&next);
    text.push_back(static_cast<char>(next));
  }

  std::vector<int> of_punctuation(contiguous::layer_count + 1), of_others = of_punctuation;
  for (std::size_t t = 0; t < prompt; ++t) ++(punctuation[t] ? of_punctuation : of_others)[sequence.depths()[t]];
  std::cout << "Tokens of the prompt by the number of layers that they ran through\nlayers punctuation others\n";
  for (std::size_t depth = 1; depth <= contiguous::layer_count; ++depth) {
    std::cout << depth << " " << of_punctuation[depth] << " " << of_others[depth] << "\n";
  }
}
