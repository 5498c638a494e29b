#include "engine.hpp"

#include <iostream>

int main() {
  const lazyllm::KeepRatio half({{2, 0.5}, {4, 0.5}});  // half of the tokens after layer 2, half of these after 4
  token_by_token::Engine engine(lazyllm::ProtectFirst{half, 4}, /*seq_len=*/320);
  std::vector<std::int32_t> text(300);
  for (std::int32_t i = 0; i < 300; ++i) text[i] = i * i % token_by_token::vocabulary;

  std::cout << "Answer:";
  for (int i = 0; i < 16; ++i) {
    const auto& logits = engine.forward(std::span(text).subspan(engine.sequence.length()));
    text.push_back(static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin()));
    std::cout << " " << text.back();
    if (i > 0) continue;
    const double share = lazyllm::computed_share(engine.sequence.depths(), token_by_token::layer_count);
    std::cout << " (the first token, from " << 100 * share << " % of the prompt's work)";
  }
  std::cout << "\n";
}
