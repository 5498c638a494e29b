#include <doctest/doctest.h>

#include "examples/llama/checkpoint/checkpoint.hpp"
#include "tests/examples/llama/model/lazy_fixture.hpp"
#include "tests/support/source_folder.hpp"

using namespace llama;

TEST_CASE("kept sets, revivals and logits of every step equal those of the naive NumPy LazyLLM") {
  const std::filesystem::path folder = lazyllm::test::source_folder() / "tests/reference/fixtures/lazyllm";
  Index revived = 0;
  for (const std::string& name : test::LazyFixture::names(folder)) {
    CAPTURE(name);
    test::LazyFixture fixture(folder, name);
    const Model<float> model(Checkpoint(fixture.model), 1);
    LazyDecoder<float> decoder(model, 128, 1, fixture.pruner(model.config().layers));
    revived += check_steps(fixture, decoder);
  }
  CHECK(revived > 100);
}
