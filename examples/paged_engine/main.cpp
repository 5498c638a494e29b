#include "engine.hpp"

#include <iostream>

int main() {
  const lazyllm::KeepRatio half({{2, 0.5}, {4, 0.5}});  // half of the tokens after layer 2, half of these after 4
  paged::Engine engine(lazyllm::ProtectFirst{half, 4}, /*page_count=*/64);
  std::vector<std::int32_t> text(300);
  for (std::int32_t i = 0; i < 300; ++i) text[i] = i * i % paged::vocabulary;
  paged::Request one = engine.request(text), two = engine.request({text.begin(), text.begin() + 130});

  const paged::Index budget = 64;
  for (int step = 0; step < 24; ++step) {
    engine.run({&one, &two}, budget);
    const auto& stats = engine.step.stats();
    std::cout << "step " << step << ": " << stats.computed() << " rows in all layers, " << stats.revived()
              << " revived, " << stats.aux_rows << " parked\n";
  }
  for (const auto& [name, request, prompt] : {std::tuple{"One", &one, 300}, {"Two", &two, 130}}) {
    std::cout << name << ":";
    for (std::size_t i = prompt; i < request->tokens.size(); ++i) std::cout << " " << request->tokens[i];
    std::cout << "\n";
    engine.end(*request);
  }
  std::cout << engine.free_pages.size() << " pages and all rows are free again: " << engine.parked->slots_in_use()
            << " parked\n";
}
