#include <doctest/doctest.h>
#include <lazyllm/check.hpp>
#include <vector>

#include "examples/contiguous_engine/engine.hpp"

using namespace contiguous;

// [check]
namespace {

struct CheckedEngine : Engine {
  using value_type = float;

  CheckedEngine(Index /*sequences*/, Index tokens) : Engine(lazyllm::KeepAll(), tokens) {}
  Index hidden_size() const { return contiguous::hidden_size; }
  auto& layers() { return Engine::layers; }
  void embed(lazyllm::cpu::Context&, std::span<const std::int32_t> tokens, lazyllm::Positions,
             lazyllm::RowsView<float> rows) {
    as_matrix(rows) = embedding(tokens, Eigen::all);
  }
  std::vector<float> logits(lazyllm::cpu::Context&, lazyllm::RowsView<float> rows) {
    const Row last = contiguous::logits(as_matrix(rows));
    return {last.begin(), last.end()};
  }
  void poison(lazyllm::cpu::Context&, Index layer, Index /*sequence*/, lazyllm::Position position) {
    AttentionBlock& block = layers()[layer].attention();
    for (Matrix* cache : {&block.key_cache, &block.value_cache}) cache->row(position).setConstant(NAN);
  }
  std::vector<float> probabilities(lazyllm::cpu::Context&, const lazyllm::LayerPlan& plan, Index, Index row) {
    const auto visible = plan.keys().first(plan.key_limits()[row]);
    const Row p = layers()[plan.layer()].attention().probabilities(row, visible);
    return {p.begin(), p.end()};
  }
};

}  // namespace

TEST_CASE("the contiguous engine is right") {
  lazyllm::cpu::Context context;
  const auto make = [](Index sequences, Index tokens) { return CheckedEngine(sequences, tokens); };
  std::vector<std::int32_t> prompt(60);
  for (std::int32_t i = 0; i < 60; ++i) prompt[i] = i * i % vocabulary;
  const auto report = lazyllm::check_engine(context, make, prompt, {.sequences = 1});
  INFO(report.text());
  CHECK(report.passed());
}
// [check-end]
