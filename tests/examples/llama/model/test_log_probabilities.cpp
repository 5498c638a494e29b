#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "examples/llama/base.hpp"
#include "examples/llama/model/cpu.hpp"
#include "examples/llama/model/log_probabilities.hpp"
#include "examples/llama/model/operations.hpp"
#include "tests/examples/llama/checkpoint/support.hpp"
#include "tests/examples/llama/model/small_models.hpp"

using namespace llama;
using llama::test::small_model;
using llama::test::small_models;
using testing::check_rejected;

namespace {

std::vector<TokenId> some_tokens(Index count) {
  std::mt19937 random(5);
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 97);
  return tokens;
}

}  // namespace

TEST_CASE("log probabilities equal those of the decoder's own logits, one token after the other") {
  for (const char* name : small_models) {
    const Model<float> model(small_model(name), 1);
    // A whole number of chunks of logits, one row more, and few.
    for (const Index count : {1, 2, 65, 66}) {
      const std::vector<TokenId> tokens = some_tokens(count);
      const TokenLogProbabilities found = token_log_probabilities(model, tokens, 1);
      REQUIRE(std::ssize(found.values) == count);
      CHECK(found.values[0] == 0);
      DenseDecoder<float> decoder(model, count, 1);
      for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
        const auto logits = decoder.step({&tokens[i], 1});
        double sum = 0;
        for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
        const double expected = logits[static_cast<std::size_t>(tokens[i + 1])] - std::log(sum);
        REQUIRE(found.values[i + 1] == doctest::Approx(expected).epsilon(1e-4));
      }
      const TokenLogProbabilities threaded = token_log_probabilities(model, tokens, 2);
      CHECK(threaded.operations == found.operations);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        REQUIRE(threaded.values[i] == doctest::Approx(found.values[i]).epsilon(1e-4));
      }
    }
  }
}

TEST_CASE("log probabilities of what the model cannot run") {
  const Model<float> model(small_model("mha_4_layers"), 1);
  check_rejected<std::invalid_argument>([&] { token_log_probabilities(model, std::vector<TokenId>{}, 1); },
                                        {"0 tokens"});
  check_rejected<std::invalid_argument>(
      [&] {
        token_log_probabilities(model, std::vector<TokenId>{5, 97}, 1);
      },
      {"token 97", "0 to 96"});
  check_rejected<std::invalid_argument>([&] { token_log_probabilities(model, some_tokens(129), 1); }, {"129", "128"});
}

TEST_CASE("the operations of a dense prefill are those that the decoder counts") {
  for (const char* name : small_models) {
    const Model<float> model(small_model(name), 1);
    for (const Index count : {1, 2, 37, 100}) {
      DenseDecoder<float> decoder(model, count, 1);
      decoder.step(some_tokens(count));
      CHECK(prefill_operations(model.config(), count) == decoder.operations());

      // All rows of the last layer, and the classifier for all but the last token.
      const ModelConfig& config = model.config();
      const auto rows = static_cast<double>(count);
      const auto hidden_size = static_cast<double>(config.hidden_size);
      const auto query_width = static_cast<double>(config.heads * config.head_dim);
      const double row = 2 * hidden_size * (2 * query_width + 3 * static_cast<double>(config.intermediate_size));
      const double more = (rows - 1) * row + 4 * query_width * (rows * (rows + 1) / 2 - rows) +
                          (rows - 1) * 2 * hidden_size * static_cast<double>(config.vocab);
      CHECK(token_log_probabilities(model, some_tokens(count), 1).operations ==
            doctest::Approx(decoder.operations() + more).epsilon(1e-12));
    }
  }
}
