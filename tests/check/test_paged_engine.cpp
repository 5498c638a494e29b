#include <doctest/doctest.h>
#include <lazyllm/check.hpp>

#include "examples/paged_engine/engine.hpp"

using namespace paged;

namespace {

struct CheckedEngine : Engine {
  using value_type = float;

  CheckedEngine(Index sequences, Index tokens)
      : Engine(lazyllm::KeepAll(), static_cast<std::int32_t>(sequences * (tokens / page_size + 1))) {
    for (Index s = 0; s < sequences; ++s) requests.push_back(request({}));
    for (Request& request : requests) {
      take_pages(request, tokens);
      batch.push_back(&request);
    }
  }
  Index hidden_size() const { return paged::hidden_size; }
  auto& layers() { return Engine::layers; }
  void embed(lazyllm::cpu::Context&, std::span<const std::int32_t> tokens, lazyllm::Positions,
             lazyllm::RowsView<float> rows) {
    as_matrix(rows) = embedding(tokens, Eigen::all);
  }
  std::vector<float> logits(lazyllm::cpu::Context&, lazyllm::RowsView<float> rows) {
    std::vector<float> all;
    for (Index r = 0; r < rows.rows; ++r) {
      const Row row = paged::logits(as_matrix(rows).row(r));
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }
  void poison(lazyllm::cpu::Context&, Index layer, Index sequence, Position position) {
    Block& block = layers()[layer].attention();
    const Index slot = requests[sequence].slot(position);
    for (Matrix* pages : {&block.key_pages, &block.value_pages}) pages->row(slot).setConstant(NAN);
  }
  std::vector<float> probabilities(lazyllm::cpu::Context&, const LayerPlan& plan, Index sequence, Index row) {
    std::vector<Index> visible;
    for (const Position position : plan.sequence(sequence).keys.first(plan.key_limits()[row])) {
      visible.push_back(requests[sequence].slot(position));
    }
    const Row p = layers()[plan.layer()].attention().probabilities(row, visible);
    return {p.begin(), p.end()};
  }

  std::vector<Request> requests;
};

std::vector<std::int32_t> prompt_of(std::int32_t length) {
  std::vector<std::int32_t> prompt(length);
  for (std::int32_t i = 0; i < length; ++i) prompt[i] = i * i % vocabulary;
  return prompt;
}

}  // namespace

TEST_CASE("the paged engine is right") {
  lazyllm::cpu::Context context;
  const auto make = [](Index sequences, Index tokens) { return CheckedEngine(sequences, tokens); };
  const auto report = lazyllm::check_engine(context, make, prompt_of(60));
  INFO(report.text());
  CHECK(report.passed());
}

TEST_CASE("the paged engine answers the same for any budget, beside other requests") {
  const auto answer = [](Index budget, bool beside) {
    Engine engine(lazyllm::KeepRatio({{2, 0.5}, {4, 0.5}}), 64);
    Request request = engine.request(prompt_of(100)), other = engine.request(prompt_of(70));
    while (request.tokens.size() < 108) engine.run(beside ? Batch{&other, &request} : Batch{&request}, budget);
    engine.end(request);
    engine.end(other);
    CHECK(engine.free_pages.size() == 64);
    CHECK(engine.parked->slots_in_use() == 0);
    return request.tokens;
  };
  const auto whole = answer(1000, false);
  CHECK(answer(17, false) == whole);
  CHECK(answer(1, true) == whole);
}

TEST_CASE("a request that fails leaves the others of the paged engine alone") {
  const auto policy = [](const lazyllm::PrunePoint& point) -> lazyllm::Selection {
    if (point.tokens == 73 && point.layers_run == 3) throw std::runtime_error("no more");
    return lazyllm::KeepRatio({{2, 0.5}})(point);
  };
  Engine engine(policy, 64);
  Request good = engine.request(prompt_of(100)), bad = engine.request(prompt_of(70));
  for (int step = 0; step < 8; ++step) engine.run({&good, &bad}, 1000);
  CHECK(good.tokens.size() == 108);
  CHECK(good.failure == nullptr);
  CHECK(bad.failure != nullptr);
  CHECK(bad.tokens.size() == 73);
  CHECK(bad.sequence.length() == 72);  // as it was before the step that failed
}
