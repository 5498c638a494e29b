#include <doctest/doctest.h>
#include <lazyllm/check.hpp>

#include "examples/paged_engine/engine.hpp"
#include "support/prompt.hpp"

using namespace paged;
using lazyllm::test::prompt_of;

namespace {

struct CheckedEngine : Engine {
  static constexpr Index hidden_size = paged::hidden_size;

  CheckedEngine(Index sequences, Index tokens) : Engine(lazyllm::KeepAll(), sequences * (tokens / page_size + 1)) {
    for (Index s = 0; s < sequences; ++s) requests.push_back(request({}));
    for (Request& request : requests) take_pages(*batch.emplace_back(&request), tokens);
  }
  void embed(auto&, auto tokens, auto, auto rows) { as_matrix(rows) = embedding(tokens, Eigen::all); }
  Row logits(auto&, auto row) { return paged::logits(as_matrix(row)); }
  void poison(auto&, Index layer, Index sequence, Position position) {
    auto& block = layers[layer].attention();
    const auto slot = requests[sequence].slots({&position, 1}).front();
    for (Matrix* pages : {&block.key_pages, &block.value_pages}) pages->row(slot).setConstant(NAN);
  }
  Row probabilities(auto&, const LayerPlan& plan, Index sequence, Index row) {
    const auto visible = plan.sequence(sequence).keys.first(plan.key_limits()[row]);
    return layers[plan.layer()].attention().probabilities(row, requests[sequence].slots(visible));
  }

  std::vector<Request> requests;
};

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

TEST_CASE("where each request of the paged engine fails, each has its error") {
  const auto policy = [](const lazyllm::PrunePoint& point) -> lazyllm::Selection {
    throw std::runtime_error(std::to_string(point.tokens) + " tokens");
  };
  Engine engine(policy, 64);
  Request a = engine.request(prompt_of(100)), b = engine.request(prompt_of(70));
  engine.run({&a, &b}, 1000);
  engine.run({&a, &b}, 1000);  // nothing is left to run
  for (const auto& [request, message] : {std::pair(&a, "100 tokens"), std::pair(&b, "70 tokens")}) {
    REQUIRE(request->failure != nullptr);
    CHECK_THROWS_WITH_AS(std::rethrow_exception(request->failure), message, std::runtime_error);
    CHECK(request->sequence.length() == 0);
  }
}
