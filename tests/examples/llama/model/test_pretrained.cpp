#include <doctest/doctest.h>

#include "examples/llama/checkpoint/checkpoint.hpp"
#include "tests/examples/llama/files.hpp"
#include "tests/examples/llama/model/lazy_fixture.hpp"

using namespace llama;

// What tests/reference/make_pretrained_reference.py has written: three prompts of 2000 tokens run dense by
// transformers, one of 500 pruned by the naive LazyLLM.
TEST_CASE("SmolLM2: dense logits equal transformers', keep-all ones the dense, pruned steps the naive LazyLLM's") {
  const std::filesystem::path folder = test::cached("reference/smollm2");
  if (!std::filesystem::exists(folder / "cases.json") || !std::filesystem::exists(test::cached("smollm2"))) {
    MESSAGE("skipped: no SmolLM2 or no reference for it in the cache");
    return;
  }
  const Model<float> model(Checkpoint(test::cached("smollm2")), 2);
  constexpr Index capacity = 2048;
  Index pruned = 0;
  for (const std::string& name : test::LazyFixture::names(folder)) {
    CAPTURE(name);
    test::LazyFixture fixture(folder, name);
    LazyDecoder<float> lazy(model, capacity, 2, fixture.pruner(model.config().layers));
    const Index revived = check_steps(fixture, lazy);
    if (fixture.content.at("schedule") != "dense") {
      CHECK(revived > 100);
      ++pruned;
      continue;
    }
    DenseDecoder<float> dense(model, capacity, 2);
    lazy.clear();
    for (const auto& step : fixture.content.at("steps")) {
      const std::vector<TokenId> tokens = step.at("tokens");
      CHECK(std::ranges::equal(dense.step(tokens), lazy.step(tokens)));
    }
  }
  CHECK(pruned == 1);
}
