#include "engine.hpp"

#include <iostream>

int main() {
  const lazyllm::KeepRatio half({{2, 0.5}, {4, 0.5}});  // half of the tokens after layer 2, half of these after 4
  contiguous::Engine engine(lazyllm::ProtectFirst{half, 4}, /*capacity=*/320);
  std::vector<std::int32_t> text(300);
  for (std::int32_t i = 0; i < 300; ++i) text[i] = i * i % contiguous::vocabulary;

  std::cout << "Answer:";
  for (int i = 0; i < 16; ++i) {
    engine.run(std::span(text).subspan(engine.sequence.length())).maxCoeff(&text.emplace_back());
    std::cout << " " << text.back();
    if (i > 0) continue;
    const double share = lazyllm::computed_share(engine.sequence.depths(), contiguous::layer_count);
    std::cout << " (the first token, from " << 100 * share << " % of the prompt's work)";
  }
  std::cout << "\n\nlayer active computed revived, in the last step\n";
  for (std::size_t l = 0; l < contiguous::layer_count; ++l) {
    const lazyllm::LayerStats& layer = engine.step.stats().layers[l];
    std::cout << l << " " << layer.active << " " << layer.computed << " " << layer.revived << "\n";
  }
}
