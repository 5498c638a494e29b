#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/model/cpu.hpp"
#include "examples/llama/program/pruning_options.hpp"
#include "examples/llama/tokenizer/support.hpp"

using namespace llama;

namespace {

using Pruner = lazyllm::TokenPruner<lazyllm::AnyPolicy>;

/// A small real model with its tokenizer, and the text that llama2.c writes with it.
struct Stories {
  Checkpoint checkpoint{test::real_input("stories260K/stories260K.bin")};
  std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(test::real_input("stories260K/tok512.bin"), 512);
  std::string expected = test::read(test::real_input("stories260K/expected.txt"));
};

std::optional<Stories> open_stories() {
  if (std::filesystem::exists(test::real_input("stories260K/stories260K.bin"))) return std::make_optional<Stories>();
  MESSAGE("skipped: the model stories260K is absent");
  return std::nullopt;
}

template <class T>
Pruner pruner(const Model<T>& model, const char* schedule) {
  return Pruner(parse_policy(schedule, model.config().layers));
}

TokenId likeliest(std::span<const float> logits) {
  return static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
}

/// Tokens of the prompt and of a greedy answer, until `positions` have been run.
template <class Decoder>
std::vector<TokenId> greedy(Decoder& decoder, const std::vector<TokenId>& prompt, Index positions) {
  std::vector<TokenId> tokens = prompt;
  std::span<const float> logits = decoder.step(prompt);
  while (true) {
    tokens.push_back(likeliest(logits));
    if (decoder.length() == positions || tokens.back() <= 2) return tokens;
    logits = decoder.step({&tokens.back(), 1});
  }
}

}  // namespace

TEST_CASE("stories260K: the dense greedy text equals llama2.c's") {
  const auto stories = open_stories();
  if (!stories) return;
  const std::vector<TokenId> prompt = stories->tokenizer->encode("Once upon a time", true);
  for (const int threads : {1, 2}) {
    const Model<float> model(stories->checkpoint, threads);
    DenseDecoder<float> decoder(model, 256, threads);
    CHECK(test::streamed(*stories->tokenizer, greedy(decoder, prompt, 256)) + "\n" == stories->expected);
  }
}

TEST_CASE("stories260K: lazy with nothing to prune has the dense logits bit for bit in every step") {
  const auto stories = open_stories();
  if (!stories) return;
  const std::vector<TokenId> prompt = stories->tokenizer->encode("Once upon a time", true);
  const Model<float> model(stories->checkpoint, 1);
  for (const char* schedule : {"dense", "1:1,2:1,3:1,4:1", "mass@2:1.0", "static@2:1"}) {
    CAPTURE(schedule);
    DenseDecoder<float> dense(model, 256, 1);
    LazyDecoder<float> lazy(model, 256, 1, pruner(model, schedule));
    std::vector<TokenId> tokens = prompt;
    std::span<const float> expected = dense.step(prompt);
    std::span<const float> logits = lazy.step(prompt);
    Index unequal = 0;
    while (true) {
      unequal += std::ranges::equal(logits, expected) ? 0 : 1;
      tokens.push_back(likeliest(logits));
      if (lazy.length() == 256) break;
      expected = dense.step({&tokens.back(), 1});
      logits = lazy.step({&tokens.back(), 1});
    }
    CHECK(unequal == 0);
    CHECK(test::streamed(*stories->tokenizer, tokens) + "\n" == stories->expected);
  }
}

TEST_CASE("stories260K: a moderate schedule with a long prompt prunes, revives and goes on like a story") {
  const auto stories = open_stories();
  if (!stories) return;
  const std::vector<TokenId> prompt = stories->tokenizer->encode(stories->expected.substr(0, 480), true);
  const auto rows = static_cast<double>(prompt.size());
  const Model<float> model(stories->checkpoint, 1);
  LazyDecoder<float> lazy(model, 512, 1, pruner(model, "2:0.6,4:0.6"));
  DenseDecoder<float> dense(model, 512, 1);
  std::vector<TokenId> answer = {likeliest(lazy.step(prompt))};
  dense.step(prompt);
  const auto kept = static_cast<Index>(std::ceil(0.6 * rows));
  CHECK(lazy.stats().layers[1].computed == std::ssize(prompt));
  CHECK(lazy.stats().layers[2].computed == kept);
  CHECK(lazy.stats().layers[3].computed == kept);
  CHECK(lazy.stats().layers[4].computed == static_cast<Index>(std::ceil(0.6 * static_cast<double>(kept))));
  CHECK(lazy.operations() < 0.8 * dense.operations());

  Index revived = 0;
  for (int i = 0; i < 100 && answer.back() > 2; ++i) {
    answer.push_back(likeliest(lazy.step({&answer.back(), 1})));
    revived += lazy.stats().revived();
  }
  CHECK(revived > 0);
  CHECK(lazy.sequence().computed_percent(std::ssize(prompt)) < 100);
  const std::string text = test::streamed(*stories->tokenizer, answer);
  CHECK(std::ranges::count(text, ' ') > 10);
}
