#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/model/cpu.hpp"
#include "examples/llama/program/pruning_options.hpp"
#include "tests/examples/llama/model/relative_error.hpp"

using namespace llama;

namespace {

const std::filesystem::path folder = std::filesystem::path(LAZYLLM_SOURCE_DIR) / "tests/reference/fixtures/lazyllm";

nlohmann::json read_json(const std::filesystem::path& path) { return nlohmann::json::parse(std::ifstream(path)); }

/// The active positions of every layer of a step; in the file null stands for those of the layer before.
std::vector<std::vector<Position>> active_sets(const nlohmann::json& step, Index tokens) {
  std::vector<std::vector<Position>> sets;
  for (const auto& layer : step.at("active")) {
    if (!layer.is_null()) {
      sets.push_back(layer);
    } else if (sets.empty()) {
      sets.emplace_back(static_cast<std::size_t>(tokens));
      std::iota(sets.back().begin(), sets.back().end(), 0);
    } else {
      sets.push_back(sets.back());
    }
  }
  return sets;
}

}  // namespace

TEST_CASE("kept sets, revivals and logits of every step equal those of the naive NumPy LazyLLM") {
  Index revived = 0;
  for (const std::string name : read_json(folder / "cases.json")) {
    CAPTURE(name);
    const nlohmann::json fixture = read_json(folder / "cases" / (name + ".json"));
    const Model<float> model(Checkpoint(folder / fixture.at("model").get<std::string>()), 1);
    lazyllm::AnyPolicy policy = parse_policy(fixture.at("schedule").get<std::string>(), model.config().layers);
    policy = lazyllm::ProtectLast<lazyllm::AnyPolicy>{policy, fixture.at("protect_last")};
    policy = lazyllm::ProtectFirst<lazyllm::AnyPolicy>{policy, fixture.at("protect_first")};
    LazyDecoder<float> decoder(model, 128, 1,
                               lazyllm::TokenPruner<lazyllm::AnyPolicy>(
                                   policy, lazyllm::AttentionScore::parse(fixture.at("score").get<std::string>())));

    std::ifstream logits_file(folder / fixture.at("logits").get<std::string>(), std::ios::binary);
    std::vector<float> expected(static_cast<std::size_t>(model.config().vocab));
    for (const auto& step : fixture.at("steps")) {
      std::vector<std::vector<Position>> active;
      decoder.observe_layers(
          [&](const lazyllm::LayerPlan& plan) { active.emplace_back(plan.keys().begin(), plan.keys().end()); });
      const std::vector<TokenId> tokens = step.at("tokens");
      const std::span<const float> logits = decoder.step(tokens);
      CHECK(active == active_sets(step, decoder.length()));
      for (std::size_t layer = 0; layer < active.size(); ++layer) {
        CHECK(decoder.stats().layers[layer].computed == step.at("computed")[layer]);
        CHECK(decoder.stats().layers[layer].revived == step.at("revived")[layer]);
      }
      revived += decoder.stats().revived();

      logits_file.read(reinterpret_cast<char*>(expected.data()), static_cast<std::streamsize>(expected.size() * 4));
      REQUIRE(logits_file.good());
      CHECK(llama::test::relative_error(logits, expected) <= 1e-4F);
      const auto next = std::max_element(logits.begin(), logits.end()) - logits.begin();
      CHECK(next == step.at("next").get<Index>());
    }
    const auto depths = decoder.sequence().depths();
    CHECK(std::accumulate(depths.begin(), depths.end(), Index{0}) == fixture.at("computed_total").get<Index>());
  }
  CHECK(revived > 100);
}
