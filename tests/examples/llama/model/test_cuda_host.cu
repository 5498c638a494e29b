#include "tests/examples/llama/model/cuda_host_cases.hpp"
#include "tests/examples/llama/model/transformers_fixture.hpp"

namespace llama::test {

TEST_CASE("CUDA host: 50 random prompts and schedules with revivals give the CPU's kept sets and logits") {
  check_random_runs(std::max(4, static_cast<int>(lazyllm::test::runs(50))));
}

TEST_CASE("CUDA host: tensor-core attention gives the CPU's logits, of dense and pruned runs") {
  check_runs_in_16_bits();
}

TEST_CASE("CUDA host: logits equal those of Hugging Face transformers in f32, and are near them in 16 bits") {
  for (const std::string& name : TransformersFixture::names()) {
    CAPTURE(name);
    const TransformersFixture fixture(name);
    const auto error = [&](const auto& open) {
      const std::unique_ptr<AnyModel> model = open(fixture.checkpoint.config(), weights_of(fixture.checkpoint));
      return fixture.worst_error(*model->dense(96));
    };
    CHECK(error(open_cuda_model_f32) <= 1e-4F);
    CHECK(error(open_cuda_model_f16) <= 2e-2F);
    CHECK(error(open_cuda_model_bf16) <= 0.08F);  // as on the CPU, against logits in f32
  }
}

TEST_CASE("CUDA host: bf16 logits are within 2e-2 of the CPU's bf16 logits") {
  std::mt19937 random(8);
  for (const char* name : small_models) {
    CAPTURE(name);
    const Checkpoint checkpoint = small_model(name);
    const auto cpu = open_model(checkpoint.config(), weights_of(checkpoint), {"cpu", "bf16", 1});
    const auto cuda = open_cuda_model_bf16(checkpoint.config(), weights_of(checkpoint));
    const auto cpu_decoder = cpu->dense(64);
    const auto cuda_decoder = cuda->dense(64);
    for (const Index count : {40, 1, 7}) {
      const std::vector<TokenId> tokens = random_tokens(random, count, checkpoint.config().vocab);
      const std::vector<float> expected = copied(cpu_decoder->step(tokens));
      CHECK(relative_error(cuda_decoder->step(tokens), expected) <= 2e-2F);
    }
  }
}

}  // namespace llama::test
