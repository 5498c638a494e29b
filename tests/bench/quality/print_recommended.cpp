// print_recommended: the library's recommended presets, a line of JSON for each number of layers and speedup, for a
// model of the default widths, and for SmolLM2's.
#include <iostream>
#include <lazyllm/lazyllm.hpp>

void print(lazyllm::Index layers, const lazyllm::LayerWidths& widths) {
  for (const double speedup : {1.0, 1.5, 1.99, 2.0, 2.34, 3.0, 4.0}) {
    const lazyllm::Preset preset = lazyllm::recommended(layers, speedup, widths);
    std::cout << R"({"hidden_size": )" << widths.hidden_size << R"(, "layers": )" << layers << R"(, "speedup": )"
              << speedup << R"(, "schedule": ")" << to_text(preset.schedule) << R"(", "score": ")"
              << to_text(preset.score) << R"(", "protect_first": )" << preset.protect_first << R"(, "protect_last": )"
              << preset.protect_last;
    if (preset.max_revived != lazyllm::Selection::unlimited) std::cout << R"(, "max_revived": )" << preset.max_revived;
    if (preset.decode_revived) std::cout << R"(, "decode_revived": )" << *preset.decode_revived;
    if (preset.first_revived) std::cout << R"(, "first_revived": )" << *preset.first_revived;
    if (preset.continuations) std::cout << R"(, "continuations": )" << *preset.continuations;
    if (preset.revive_from) std::cout << R"(, "revive_from": )" << *preset.revive_from;
    if (preset.min_tokens) std::cout << R"(, "min_tokens": )" << *preset.min_tokens;
    std::cout << "}\n";
  }
}

int main() {
  for (lazyllm::Index layers = 1; layers <= 96; ++layers) {
    print(layers, {});
    print(layers, {576, 9, 3, 64, 1536});
  }
}
