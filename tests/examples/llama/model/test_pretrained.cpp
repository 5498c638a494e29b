#include <doctest/doctest.h>

#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"
#include "tests/examples/llama/files.hpp"
#include "tests/examples/llama/longbench.hpp"
#include "tests/examples/llama/model/lazy_fixture.hpp"
#include "tests/support/source_folder.hpp"

using namespace llama;

namespace {

const test::NeedsInput model_and_prompts(
    std::filesystem::exists(test::cached("smollm2")) && test::LongBench::is_there(),
    "SmolLM2 in the cache, which examples/models/fetch.sh fetches, or no LongBench");

/// The first and the last half of `count` tokens of a prompt.
std::vector<TokenId> ends_of(const std::vector<TokenId>& tokens, Index count) {
  REQUIRE(std::ssize(tokens) > count);
  std::vector<TokenId> ends(tokens.begin(), tokens.begin() + count / 2);
  ends.insert(ends.end(), tokens.end() - count / 2, tokens.end());
  return ends;
}

}  // namespace

// What tests/reference/make_pretrained_fixtures.py has written: prompts of 2000 tokens, three run dense by
// transformers, and one pruned by the naive LazyLLM with a preset of the model.
TEST_CASE("SmolLM2: dense logits equal transformers', keep-all ones the dense, pruned steps the naive LazyLLM's") {
  const std::filesystem::path folder = lazyllm::test::source_folder() / "tests/reference/fixtures/pretrained";
  const Model<float> model(Checkpoint(test::cached("smollm2")), 2);
  const auto tokenizer = open_tokenizer(test::cached("smollm2"));
  test::LongBench longbench;
  constexpr Index capacity = 2048;
  Index dense_cases = 0, pruned_cases = 0;
  const std::vector<std::string> names = test::LazyFixture::names(folder);
  for (const std::string& name : names) {
    CAPTURE(name);
    test::LazyFixture fixture(folder, name);
    const auto& prompt = fixture.content.at("prompt");
    fixture.prompt = ends_of(tokenizer->encode(longbench.prompt(prompt.at("file"), prompt.at("line")), true),
                             prompt.at("count").get<Index>());
    LazyDecoder<float> lazy(model, capacity, 2, fixture.pruner(model.config().layers));
    const Index revived = check_steps(fixture, lazy);
    if (fixture.content.at("schedule") != "dense") {
      CHECK(revived > 100);
      ++pruned_cases;
      continue;
    }
    ++dense_cases;
    DenseDecoder<float> dense(model, capacity, 2);
    lazy.clear();
    for (const auto& step : fixture.content.at("steps")) {
      const std::vector<TokenId> tokens = fixture.tokens_of(step);
      CHECK(std::ranges::equal(dense.step(tokens), lazy.step(tokens)));
    }
  }
  CHECK(dense_cases == 3);
  CHECK(pruned_cases == 1);
}
