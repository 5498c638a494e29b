// print_recommended: the library's recommended presets, a line of JSON for each number of layers and speedup.
#include <iostream>
#include <lazyllm/lazyllm.hpp>

int main() {
  for (lazyllm::Index layers = 1; layers <= 96; ++layers) {
    for (const double speedup : {1.0, 1.5, 1.99, 2.0, 2.34, 3.0, 4.0}) {
      const lazyllm::Preset preset = lazyllm::recommended(layers, speedup);
      std::cout << R"({"layers": )" << layers << R"(, "speedup": )" << speedup << R"(, "schedule": ")"
                << to_text(preset.schedule) << R"(", "score": ")" << to_text(preset.score) << R"(", "protect_first": )"
                << preset.protect_first << R"(, "protect_last": )" << preset.protect_last;
      if (preset.decode_revived) std::cout << R"(, "decode_revived": )" << *preset.decode_revived;
      if (preset.first_revived) std::cout << R"(, "first_revived": )" << *preset.first_revived;
      std::cout << "}\n";
    }
  }
}
