#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"
#include "tests/examples/llama/files.hpp"
#include "tests/examples/llama/model/relative_error.hpp"
#include "tests/support/source_folder.hpp"

namespace llama::test {

inline const std::filesystem::path transformers_folder =
    lazyllm::test::source_folder() / "tests/reference/fixtures/transformers";

/// A checkpoint, and the logits that Hugging Face transformers has after each of the first tokens.
struct TransformersFixture {
  explicit TransformersFixture(const std::string& name) : checkpoint(transformers_folder / name) {
    const auto description = nlohmann::json::parse(std::ifstream(transformers_folder / name / "expected.json"));
    tokens = description.at("tokens").get<std::vector<TokenId>>();
    prefixes = description.at("prefixes").get<std::vector<std::size_t>>();
    const std::string bytes = read(transformers_folder / name / description.at("logits").get<std::string>());
    logits.resize(bytes.size() / sizeof(float));
    std::memcpy(logits.data(), bytes.data(), bytes.size());
    REQUIRE(logits.size() == tokens.size() * static_cast<std::size_t>(checkpoint.config().vocab));
  }

  static std::vector<std::string> names() {
    return nlohmann::json::parse(std::ifstream(transformers_folder / "checkpoints.json"));
  }

  /// Largest difference from transformers' logits after the first `count` tokens, over the largest of these.
  float error(std::span<const float> actual, std::size_t count) const {
    return relative_error(actual, std::span(logits).subspan((count - 1) * actual.size(), actual.size()));
  }

  /// Largest error of `decoder` over prompts in one step, in several steps, and token by token.
  template <class Decoder>
  float worst_error(Decoder& decoder) const {
    float worst = 0;
    for (const std::size_t prefix : prefixes) {
      decoder.clear();
      worst = std::max(worst, error(decoder.step(part(0, prefix)), prefix));
    }
    decoder.clear();
    std::size_t before = 0;
    for (const std::size_t prefix : prefixes) {
      worst = std::max(worst, error(decoder.step(part(before, prefix - before)), prefix));
      before = prefix;
    }
    decoder.clear();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      worst = std::max(worst, error(decoder.step(part(i, 1)), i + 1));
    }
    return worst;
  }

  std::span<const TokenId> part(std::size_t first, std::size_t count) const {
    return std::span(tokens).subspan(first, count);
  }

  Checkpoint checkpoint;
  std::vector<TokenId> tokens;
  std::vector<std::size_t> prefixes;
  std::vector<float> logits;
};

}  // namespace llama::test
