#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "examples/calibrate/agreement.hpp"
#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/model/operations.hpp"
#include "tests/support/source_folder.hpp"

using namespace llama;

namespace {

const std::filesystem::path models = lazyllm::test::source_folder() / "tests/reference/fixtures/lazyllm/models";

std::unique_ptr<AnyModel> open_named(const char* name) {
  const Checkpoint checkpoint(models / name);
  return open_model(checkpoint.config(), weights_of(checkpoint), {});
}

std::vector<TokenId> made_up_prompt(int length) {
  std::vector<TokenId> prompt;
  for (int i = 0; i < length; ++i) prompt.push_back((i * i * 37 + 11 * i) % 94 + 3);
  return prompt;
}

lazyllm::Preset preset(const char* schedule, const char* score, Index protect_first, Index protect_last) {
  return {lazyllm::parse_schedule(schedule), lazyllm::parse_score(score), protect_first, protect_last};
}

std::vector<long double> softmax(std::span<const float> logits) {
  std::vector<long double> result;
  long double sum = 0;
  for (const float logit : logits) sum += result.emplace_back(std::exp(static_cast<long double>(logit)));
  for (long double& value : result) value /= sum;
  return result;
}

TokenId likeliest(std::span<const float> logits) {
  return static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
}

}  // namespace

TEST_CASE("agreement: what is kept whole agrees in every token and every bit") {
  const auto model = open_named("gqa2_6_layers");
  const auto dense = model->dense(64);
  const auto lazy = model->lazy(64, make_pruner(lazyllm::Preset{}));
  const Reference reference = make_reference(*dense, made_up_prompt(50), 8, {});
  const Outcome outcome = agree(*lazy, reference);
  CHECK(outcome.positions == 8);
  CHECK(outcome.equal == 8);
  CHECK(outcome.kl == 0);
}

TEST_CASE("agreement: against every position run anew, with textbook probabilities") {
  const auto model = open_named("gqa2_6_layers");
  const Index vocab = model->config().vocab;
  const auto dense = model->dense(128);
  Index equal = 0;
  Index equal_after_others = 0;
  for (int length = 30; length < 110; length += 10) {
    const Reference reference = make_reference(*dense, made_up_prompt(length), 6, {});
    const auto lazy = model->lazy(128, make_pruner(preset("2:0.3,4:0.5", "mean:4", 2, 3)));
    const Outcome outcome = agree(*lazy, reference);

    REQUIRE(reference.tokens.size() == 6);
    Outcome expected{.positions = 6};
    std::vector<TokenId> text = reference.prompt;
    for (std::size_t i = 0; i < reference.tokens.size(); ++i) {
      dense->clear();
      const auto dense_logits = dense->step(text);
      CHECK(likeliest(dense_logits) == reference.tokens[i]);
      // The pruned run depends on its steps: prompt, then one token at a time.
      lazy->clear();
      auto lazy_logits = lazy->step(reference.prompt);
      for (std::size_t j = 0; j < i; ++j) lazy_logits = lazy->step({&reference.tokens[j], 1});
      const auto p = softmax(dense_logits);
      const bool match = likeliest(lazy_logits) == likeliest(dense_logits);
      if (match && expected.equal < static_cast<Index>(i)) ++equal_after_others;
      if (match) ++expected.equal;
      const auto q = softmax(lazy_logits);
      for (std::size_t token = 0; token < static_cast<std::size_t>(vocab); ++token) {
        expected.kl += static_cast<double>(p[token] * std::log(p[token] / q[token]));
      }
      text.push_back(reference.tokens[i]);
    }
    CHECK(outcome.positions == expected.positions);
    CHECK(outcome.equal == expected.equal);
    CHECK(outcome.kl == doctest::Approx(expected.kl).epsilon(1e-3));
    CHECK(outcome.kl > 1e-4);
    equal += outcome.equal;
  }
  // Neither all nor none, so that the checks above can tell.
  CHECK(equal > 0);
  CHECK(equal < 8 * 6);
  CHECK(equal_after_others > 0);
}

TEST_CASE("agreement: of two turns the second answer counts, after the first one and the follow-up") {
  const auto model = open_named("gqa2_6_layers");
  const auto dense = model->dense(128);
  const auto lazy = model->lazy(128, make_pruner(preset("2:0.3,4:0.5", "mean:4", 2, 3)));
  const std::vector<TokenId> follow_up = {5, 50, 7, 70, 9};
  const Reference first = make_reference(*dense, made_up_prompt(60), 6, {});
  const Reference second = make_reference(*dense, made_up_prompt(60), 6, {}, follow_up);
  CHECK(second.prompt == first.prompt);
  CHECK(std::ranges::equal(second.first_answer, std::span(first.tokens).first(5)));
  CHECK(second.follow_up.front() == first.tokens.back());
  CHECK(std::ranges::equal(std::span(second.follow_up).subspan(1), follow_up));

  std::vector<TokenId> text = second.prompt;
  text.insert(text.end(), second.first_answer.begin(), second.first_answer.end());
  text.insert(text.end(), second.follow_up.begin(), second.follow_up.end());
  lazy->clear();
  lazy->step(second.prompt);
  for (const TokenId& token : second.first_answer) lazy->step({&token, 1});
  auto lazy_logits = lazy->step(second.follow_up);
  Outcome expected{.positions = 6};
  REQUIRE(second.tokens.size() == 6);
  for (const TokenId& token : second.tokens) {
    dense->clear();
    const auto dense_logits = dense->step(text);
    CHECK(likeliest(dense_logits) == token);
    expected.kl += kl_divergence(dense_logits, lazy_logits);
    expected.equal += likeliest(lazy_logits) == token;
    text.push_back(token);
    lazy_logits = lazy->step({&token, 1});
  }
  const Outcome outcome = agree(*lazy, second);
  CHECK(outcome.positions == 6);
  CHECK(outcome.equal == expected.equal);
  CHECK(outcome.kl == doctest::Approx(expected.kl).epsilon(1e-3));
  CHECK(outcome.kl > 1e-4);
  const auto all = model->lazy(128, make_pruner(lazyllm::Preset{}));
  CHECK(agree(*all, second).kl < 1e-6);
}

TEST_CASE("agreement: the dense text ends with its first token that ends texts") {
  const auto model = open_named("gqa2_6_layers");
  const auto dense = model->dense(64);
  const Reference whole = make_reference(*dense, made_up_prompt(40), 8, {});
  const TokenId end = whole.tokens[3];
  const auto first = std::ranges::find(whole.tokens, end) - whole.tokens.begin();
  const Reference cut = make_reference(*dense, made_up_prompt(40), 8, std::vector{end});
  CHECK(std::ssize(cut.tokens) == first + 1);
  CHECK(cut.tokens.back() == end);
  CHECK(std::ssize(cut.logits) == std::ssize(cut.tokens) * model->config().vocab);
  CHECK(make_reference(*dense, made_up_prompt(40), 1, {}).tokens.size() == 1);
}

TEST_CASE("KL: of equal distributions 0, of known ones as by hand, finite where a logit is far away") {
  const std::vector<float> even = {1, 1, 1, 1};
  CHECK(kl_divergence(even, std::vector<float>{-7, -7, -7, -7}) == doctest::Approx(0));
  // p = (3/4, 1/4), q = (1/4, 3/4): 1/2 log 3.
  const std::vector<float> p = {std::log(3.0F), 0};
  const std::vector<float> q = {0, std::log(3.0F)};
  CHECK(kl_divergence(p, q) == doctest::Approx(0.5 * std::log(3.0)));
  CHECK(kl_divergence(std::vector<float>{0, 0}, std::vector<float>{0, -2000}) == doctest::Approx(1000 - std::log(2.0)));
  CHECK(kl_divergence(std::vector<float>{0, -2000}, std::vector<float>{0, 0}) == doctest::Approx(std::log(2.0)));
}

TEST_CASE("operations: as the decoders count them") {
  for (const char* name : {"gqa2_6_layers", "mha_4_layers", "qwen2_5_layers", "gqa4_3_layers"}) {
    const auto model = open_named(name);
    for (const int length : {1, 2, 9, 100}) {
      const auto dense = model->dense(128);
      dense->step(made_up_prompt(length));
      CHECK(prefill_operations(model->config(), length) == dense->operations());
      lazyllm::Preset of_long = preset("1:0.3", "last", 0, 1);
      of_long.min_tokens = 100;
      for (const lazyllm::Preset& pruned : {preset("1:0.3", "last", 0, 1), preset("1:0.5,2:0.1", "mean:4+pool:3", 4, 8),
                                            preset("2:0.01", "last", 60, 60), of_long}) {
        CAPTURE(nlohmann::json(pruned).dump());
        CAPTURE(length);
        const auto lazy = model->lazy(128, make_pruner(pruned));
        lazy->step(made_up_prompt(length));
        CHECK(prefill_operations(model->config(), length, pruned) == lazy->operations());
      }
    }
  }
}
