// A policy and a score of the user's own, on the contiguous engine. Neither derives from anything.
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "../contiguous_engine/engine.hpp"

using contiguous::as_matrix, contiguous::Index;

// [policy]
/// Keeps half of the tokens after every second layer, and all punctuation. A policy is any callable from a PrunePoint
/// to a Selection. It is asked anew in every step, so it may read what changes between steps: here a mask that grows
/// with the text.
struct KeepPunctuation {
  const std::vector<std::uint8_t>* punctuation;

  lazyllm::Selection operator()(const lazyllm::PrunePoint& point) const {
    if (point.layers_run % 2 != 0) return {};  // keeps everything
    return {.kind = lazyllm::Selection::Kind::top_k,
            .k = lazyllm::keep_count(0.5, point.active_tokens),
            .protect_first = 4,
            .protect_mask = *punctuation};
  }
};

/// Ranks a token by what it adds to the last row: its attention probability times the size of its value.
struct AttentionTimesValue {
  Index last_queries = 1;  // the last token scores

  template <class Context, class Block>
  static void score(Context& context, Block& block, const lazyllm::LayerPlan& plan,
                    std::span<const lazyllm::ScoreRequest<AttentionTimesValue>> requests) {
    lazyllm::score_by_attention(context, block, plan, requests);
    for (const auto& request : requests) {
      const lazyllm::Positions keys = plan.sequence(request.window.sequence).keys;
      for (std::size_t i = 0; i < keys.size(); ++i) request.scores[i] *= block.value_cache.row(keys[i]).norm();
    }
  }
};

using Pruner = lazyllm::TokenPruner<KeepPunctuation, AttentionTimesValue>;
// [policy-end]

int main() {
  std::string text;  // a character is a token
  while (text.size() < 300) text += "Call me Ishmael. Some years ago - never mind how long precisely - I sailed; ";
  const std::size_t prompt = text.size();
  std::vector<std::uint8_t> punctuation;
  contiguous::Engine engine(lazyllm::KeepAll(), /*capacity=*/400);  // of which this program uses the layers
  const Pruner pruner(KeepPunctuation{&punctuation});
  lazyllm::cpu::Sequence<float> sequence(contiguous::layer_count, contiguous::width);
  lazyllm::Step<decltype(sequence), Pruner> step;

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
