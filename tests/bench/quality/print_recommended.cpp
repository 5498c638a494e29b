// print_recommended: the library's recommended presets, a line of JSON for each number of layers and speedup, for a
// model of the default widths, and for SmolLM2's.
#include <iostream>
#include <lazyllm/lazyllm.hpp>
#include <nlohmann/json.hpp>

void print(lazyllm::Index layers, const lazyllm::LayerWidths& widths) {
  for (const double speedup : {1.0, 1.5, 1.99, 2.0, 2.34, 3.0, 4.0}) {
    const lazyllm::Preset preset = lazyllm::recommended(layers, speedup, widths);
    nlohmann::ordered_json line = preset;
    line["hidden_size"] = widths.hidden_size;
    line["layers"] = layers;
    line["speedup"] = speedup;
    std::cout << line << '\n';
  }
}

int main() {
  for (lazyllm::Index layers = 1; layers <= 96; ++layers) {
    print(layers, {});
    print(layers, {576, 9, 3, 64, 1536});
  }
}
