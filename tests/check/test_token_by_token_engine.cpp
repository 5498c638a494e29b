#include <doctest/doctest.h>
#include <lazyllm/check.hpp>

#include "examples/token_by_token_engine/engine.hpp"

using namespace token_by_token;

namespace {

struct CheckedEngine : Engine {
  using value_type = float;

  CheckedEngine(Index /*sequences*/, Index tokens) : Engine(lazyllm::KeepAll(), tokens) {}
  Index hidden_size() const { return dim; }
  auto& layers() { return Engine::layers; }
  void embed(lazyllm::cpu::Context&, std::span<const std::int32_t> tokens, Positions, lazyllm::RowsView<float> rows) {
    for (Index r = 0; r < rows.rows; ++r) std::copy_n(&embedding[tokens[r] * dim], dim, rows.row(r));
  }
  Floats logits(lazyllm::cpu::Context&, lazyllm::RowsView<float> rows) { return model.head(rows.row(0)); }
  Floats dense(lazyllm::cpu::Context&, std::span<const std::int32_t> tokens) {
    Floats last;
    for (Position position = 0; position < std::ssize(tokens); ++position) {
      last = model.forward(tokens[position], position);
    }
    return last;
  }
  void poison(lazyllm::cpu::Context&, Index layer, Index /*sequence*/, Position position) {
    for (auto* cache : {&model.key_cache, &model.value_cache}) {
      std::fill_n((*cache)[layer].begin() + position * dim, dim, NAN);
    }
  }
  Floats probabilities(lazyllm::cpu::Context&, const lazyllm::LayerPlan&, Index, Index) { return model.att; }
};

}  // namespace

TEST_CASE("the engine that goes token by token is right") {
  lazyllm::cpu::Context context;
  const auto make = [](Index sequences, Index tokens) { return CheckedEngine(sequences, tokens); };
  std::vector<std::int32_t> prompt(60);
  for (std::int32_t i = 0; i < 60; ++i) prompt[i] = i * i % vocabulary;
  const auto report = lazyllm::check_engine(context, make, prompt, {.last_queries = 1, .sequences = 1});
  INFO(report.text());
  CHECK(report.passed());
}
