#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "examples/llama/model/cpu.hpp"
#include "examples/llama/program/pruning_options.hpp"
#include "tests/examples/llama/model/relative_error.hpp"

namespace llama::test {

/// The steps of one sequence as another program took them. tests/reference/README.md has the format.
struct LazyFixture {
  LazyFixture(const std::filesystem::path& folder, const std::string& name)
      : content(nlohmann::json::parse(std::ifstream(folder / "cases" / (name + ".json")))),
        model(folder / content.at("model").get<std::string>()),
        logits(folder / content.at("logits").get<std::string>(), std::ios::binary) {}

  static std::vector<std::string> names(const std::filesystem::path& folder) {
    return nlohmann::json::parse(std::ifstream(folder / "cases.json"));
  }

  lazyllm::TokenPruner<lazyllm::AnyPolicy> pruner(Index layers) const {
    return lazyllm::make_pruner(lazyllm::parse_policy(content.at("schedule").get<std::string>(), layers),
                                {.score = lazyllm::parse_score(content.at("score").get<std::string>()),
                                 .protect_first = content.at("protect_first"),
                                 .protect_last = content.at("protect_last"),
                                 .max_revived = content.value("max_revived", lazyllm::Selection::unlimited),
                                 .decode_revived = number("decode_revived"),
                                 .first_revived = number("first_revived"),
                                 .continuations = number("continuations"),
                                 .revive_from = number("revive_from"),
                                 .min_tokens = number("min_tokens")});
  }

  /// A member that not all cases have.
  std::optional<Index> number(const char* name) const {
    return content.contains(name) ? std::optional<Index>(content.at(name)) : std::nullopt;
  }

  /// A step's tokens.
  std::vector<TokenId> tokens_of(const nlohmann::json& step) const {
    return step.contains("tokens") ? step.at("tokens").get<std::vector<TokenId>>() : prompt;
  }

  /// How far `actual` logits are from the next ones of the file, over the largest of the latter's step. A file with a
  /// "stride" has only some of them, and each step's "largest".
  float error_of_next(std::span<const float> actual, const nlohmann::json& step) {
    const auto stride = content.value("stride", std::size_t{1});
    std::vector<float> some;
    for (std::size_t i = 0; i < actual.size(); i += stride) some.push_back(actual[i]);
    return relative_error(some, next_logits(some.size()), step.value("largest", 0.0F));
  }

  /// The logits of the next step.
  std::vector<float> next_logits(std::size_t vocabulary) {
    std::vector<float> row(vocabulary);
    logits.read(reinterpret_cast<char*>(row.data()), static_cast<std::streamsize>(row.size() * sizeof(float)));
    REQUIRE(logits.good());
    return row;
  }

  /// The active positions of every layer of a step; in the file null stands for those of the layer before.
  static std::vector<std::vector<Position>> active_sets(const nlohmann::json& step, Index tokens) {
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

  nlohmann::json content;
  std::filesystem::path model;
  std::vector<TokenId> prompt;  ///< tokens of a first step that the file does not hold
  std::ifstream logits;
};

/// Lets `decoder` take the fixture's steps and checks active sets, rows and logits. Returns how many rows were revived.
inline Index check_steps(LazyFixture& fixture, LazyDecoder<float>& decoder) {
  Index revived = 0;
  for (const auto& step : fixture.content.at("steps")) {
    std::vector<std::vector<Position>> active;
    decoder.observe_layers(
        [&](const lazyllm::LayerPlan& plan) { active.emplace_back(plan.keys().begin(), plan.keys().end()); });
    const std::span<const float> logits = decoder.step(fixture.tokens_of(step));
    CHECK((active == LazyFixture::active_sets(step, decoder.length())));
    for (std::size_t layer = 0; layer < active.size(); ++layer) {
      CHECK(decoder.stats().layers[layer].computed == step.at("computed")[layer]);
      CHECK(decoder.stats().layers[layer].revived == step.at("revived")[layer]);
    }
    revived += decoder.stats().revived();
    CHECK(fixture.error_of_next(logits, step) <= 1e-4F);
    const auto next = std::max_element(logits.begin(), logits.end()) - logits.begin();
    CHECK(next == step.at("next").get<Index>());
  }
  decoder.observe_layers(nullptr);
  const auto depths = decoder.sequence().depths();
  CHECK(std::accumulate(depths.begin(), depths.end(), Index{0}) == fixture.content.at("computed_total").get<Index>());
  return revived;
}

}  // namespace llama::test
