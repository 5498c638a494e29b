#include <doctest/doctest.h>
#include <lazyllm/check.hpp>

#include "examples/contiguous_engine/engine.hpp"
#include "support/prompt.hpp"

using namespace contiguous;
using lazyllm::test::prompt_of;

namespace {

// [check]
struct CheckedEngine : Engine {
  static constexpr Index hidden_size = contiguous::hidden_size;

  void embed(auto&, auto tokens, auto, auto rows) { as_matrix(rows) = embedding(tokens, Eigen::all); }
  Row logits(auto&, auto row) { return contiguous::logits(as_matrix(row)); }
  void poison(auto&, Index layer, Index, Index position) {
    auto& block = layers[layer].attention();
    for (Matrix* cache : {&block.key_cache, &block.value_cache}) cache->row(position).setConstant(NAN);
  }
  Row probabilities(auto&, const lazyllm::LayerPlan& plan, Index, Index row) {
    return layers[plan.layer()].attention().probabilities(row, plan.keys().first(plan.key_limits()[row]));
  }
};

TEST_CASE("the contiguous engine is right") {
  lazyllm::cpu::Context context;
  const auto make = [](Index, Index tokens) { return CheckedEngine{{lazyllm::KeepAll(), tokens}}; };
  const auto report = lazyllm::check_engine(context, make, prompt_of(60), {.sequences = 1});
  INFO(report.text());
  CHECK(report.passed());
}
// [check-end]

}  // namespace
