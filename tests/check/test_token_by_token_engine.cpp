#include <doctest/doctest.h>
#include <lazyllm/check.hpp>

#include "examples/token_by_token_engine/engine.hpp"
#include "support/prompt.hpp"

using namespace token_by_token;

namespace {

struct CheckedEngine : Engine {
  static constexpr Index hidden_size = dim;

  void embed(auto&, auto tokens, auto, auto rows) { Engine::embed(tokens, rows); }
  const Floats& logits(auto&, auto row) { return model.head(row.data); }
  const Floats& dense(auto&, auto tokens) {
    for (Position position = 0; position < std::ssize(tokens); ++position) model.forward(tokens[position], position);
    return model.logits;
  }
  void poison(auto&, Index layer, Index, Position position) {
    for (auto* cache : {&model.key_cache, &model.value_cache}) std::fill_n(&(*cache)[layer][position * dim], dim, NAN);
  }
  const Floats& probabilities(auto&, const lazyllm::LayerPlan&, Index, Index) { return model.att; }
};

}  // namespace

TEST_CASE("the engine that goes token by token is right") {
  lazyllm::cpu::Context context;
  const auto make = [](Index, Index tokens) { return CheckedEngine{{lazyllm::KeepAll(), tokens}}; };
  const auto prompt = lazyllm::test::prompt_of(60);
  const auto report = lazyllm::check_engine(context, make, prompt, {.last_queries = 1, .sequences = 1});
  INFO(report.text());
  CHECK(report.passed());
}
