#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "tests/examples/llama/checkpoint/support.hpp"

namespace llama::test {

/// A small random model with a tokenizer of one token for each byte, as llama2.c files of 300 KB.
struct ToyModel {
  static constexpr int layers = 6;

  explicit ToyModel(const TemporaryFolder& folder, unsigned seed = 1, int context = 512) {
    constexpr int hidden_size = 32, intermediate_size = 64, heads = 4, kv_heads = 2, vocabulary = 300,
                  head_dim = hidden_size / heads;
    constexpr int kv_width = kv_heads * head_dim;
    std::mt19937 random(seed);
    std::vector<float> weights;
    const auto add = [&](int count, float mean, float spread) {
      std::normal_distribution<float> draw(mean, spread);
      for (int i = 0; i < count; ++i) weights.push_back(draw(random));
    };
    const auto matrices = [&](int size) { add(layers * size, 0, 0.3F); };
    add(vocabulary * hidden_size, 0, 1);
    add(layers * hidden_size, 1, 0);
    for (const int size :
         {hidden_size * hidden_size, kv_width * hidden_size, kv_width * hidden_size, hidden_size * hidden_size})
      matrices(size);
    add(layers * hidden_size, 1, 0);
    for (int i = 0; i < 3; ++i) matrices(intermediate_size * hidden_size);
    add(hidden_size, 1, 0);
    add(context * head_dim, 0, 0);
    add(vocabulary * hidden_size, 0, 1);
    // A negative vocabulary: the classifier has weights of its own.
    const std::vector<std::int32_t> header = {hidden_size, intermediate_size, layers, heads,
                                              kv_heads,    -vocabulary,       context};
    model = folder.write("toy.bin", testing::raw(header) + testing::raw(weights));

    std::string entries = testing::raw<std::int32_t>({8});
    const auto entry = [&](const std::string& text) {
      entries += testing::raw<float>({0}) + testing::raw<std::int32_t>({static_cast<std::int32_t>(text.size())}) + text;
    };
    for (const char* special : {"<unk>", "\n<s>\n", "\n</s>\n"}) entry(special);
    for (int byte = 0; byte < 256; ++byte) {
      char text[7];
      std::snprintf(text, sizeof text, "<0x%02X>", byte);
      entry(text);
    }
    entry(" ");
    // Words, so that what the model writes can score.
    for (int i = 260; i < vocabulary; ++i) entry(fmt::format(" w{}", i));
    tokenizer = folder.write("toy_tokenizer.bin", entries);
  }

  std::filesystem::path model, tokenizer;
};

}  // namespace llama::test
