#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "examples/llama/model/cpu.hpp"
#include "tests/examples/llama/model/relative_error.hpp"
#include "tests/examples/llama/model/small_models.hpp"

using namespace llama;
using llama::test::small_model;
using llama::test::small_models;

namespace {

std::vector<TokenId> random_tokens(std::mt19937& random, Index count, Index vocab) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % static_cast<unsigned>(vocab));
  return tokens;
}

std::vector<float> copy(std::span<const float> logits) { return {logits.begin(), logits.end()}; }

using Pruner = lazyllm::TokenPruner<lazyllm::AnyPolicy>;

}  // namespace

TEST_CASE("every way to keep everything equals the dense path bit for bit, in prefill, decode and further turns") {
  std::mt19937 random(1);
  for (const char* name : small_models) {
    const Model<float> model(small_model(name), 2);
    const Index layers = model.config().layers;
    const std::vector<lazyllm::AnyPolicy> policies = {
        lazyllm::KeepAll(),
        lazyllm::KeepRatio(lazyllm::Schedule{{1, 1.0}, {2, 1.0}}),
        lazyllm::KeepTopP(lazyllm::Schedule{{1, 1.0}}),
        lazyllm::StaticPruning(lazyllm::Schedule{{1, 1.0}}),
        lazyllm::ProtectFirst<lazyllm::KeepRatio>{lazyllm::KeepRatio({{1, 0.1}}), 1000},
        lazyllm::ProtectLast<lazyllm::KeepRatio>{lazyllm::KeepRatio({{2, 0.1}}), 1000},
        lazyllm::MinTokens<lazyllm::PaperPolicy>{{}, 1000},
    };
    const std::vector<std::vector<TokenId>> steps = {
        random_tokens(random, 37, model.config().vocab), random_tokens(random, 1, model.config().vocab),
        random_tokens(random, 1, model.config().vocab), random_tokens(random, 11, model.config().vocab)};
    for (const lazyllm::AnyPolicy& policy : policies) {
      DenseDecoder<float> dense(model, 64, 2);
      LazyDecoder<float> lazy(model, 64, 2, Pruner(policy));
      for (const auto& tokens : steps) CHECK(copy(lazy.step(tokens)) == copy(dense.step(tokens)));
      CHECK(lazy.stats().revived() == 0);
      CHECK(lazyllm::computed_share(lazy.sequence().depths(), lazy.sequence().layers()) == 1);
      CHECK(lazy.stats().layers.size() == static_cast<std::size_t>(layers));
    }
  }
}

TEST_CASE("decode steps revive what followed the last tokens earlier, also in a new text") {
  std::mt19937 random(12);
  for (const char* name : small_models) {
    const Model<float> model(small_model(name), 2);
    const Index layers = model.config().layers;
    LazyDecoder<float> decoder(
        model, 64, 2,
        lazyllm::make_pruner({.schedule = {{1, 0.1}}, .protect_last = 2, .decode_revived = 0, .continuations = 2}));
    std::vector<TokenId> prompt = random_tokens(random, 50, 40);
    for (const std::size_t place : {10U, 20U, 30U}) prompt[place] = 50;
    prompt[29] = 51;
    prompt[49] = 51;
    decoder.step(prompt);
    const auto computed = [&] {
      std::vector<std::size_t> positions;
      for (const std::size_t position : {11U, 21U, 31U}) {
        if (decoder.sequence().depths()[position] == layers) positions.push_back(position);
      }
      return positions;
    };
    REQUIRE(computed().empty());
    decoder.step(std::vector<TokenId>{50});
    CHECK(computed() == std::vector<std::size_t>{21, 31});  // 31 has two tokens in common, 21 is the latest of the rest
    CHECK(decoder.stats().revived() == 2);
    decoder.clear();
    decoder.step(prompt);
    decoder.step(std::vector<TokenId>{50});
    CHECK(computed() == std::vector<std::size_t>{21, 31});
  }
}

TEST_CASE("the number of threads does not change kept sets, and logits only within rounding") {
  std::mt19937 random(2);
  for (const char* name : small_models) {
    const std::vector<TokenId> prompt = random_tokens(random, 60, 97);
    std::vector<std::vector<float>> logits;
    std::vector<std::vector<lazyllm::Depth>> depths;
    for (const int threads : {1, 2, 3}) {
      const Model<float> model(small_model(name), threads);
      LazyDecoder<float> decoder(model, 64, threads, Pruner(lazyllm::KeepRatio(lazyllm::Schedule{{1, 0.5}, {2, 0.5}})));
      logits.push_back(copy(decoder.step(prompt)));
      depths.emplace_back(decoder.sequence().depths().begin(), decoder.sequence().depths().end());
    }
    CHECK(depths[0] == depths[1]);
    CHECK(depths[0] == depths[2]);
    for (std::size_t i = 0; i < logits[0].size(); ++i) {
      CHECK(logits[1][i] == doctest::Approx(logits[0][i]).epsilon(1e-5));
      CHECK(logits[2][i] == doctest::Approx(logits[0][i]).epsilon(1e-5));
    }
  }
}

TEST_CASE("sequences of different lengths and schedules in one step give what each gives alone") {
  constexpr Index capacity = 100;
  std::mt19937 random(3);
  for (const char* name : small_models) {
    const Model<float> model(small_model(name), 2);
    const std::vector<Pruner> pruners = {
        Pruner(lazyllm::KeepRatio(lazyllm::Schedule{{1, 0.5}, {3, 0.4}})), Pruner(lazyllm::KeepAll()),
        Pruner(lazyllm::KeepTopP(lazyllm::Schedule{{2, 0.8}}),
               lazyllm::AttentionScore{.last_queries = 4, .over_layers = true, .pooling = 3}),
        Pruner(lazyllm::StaticPruning(lazyllm::Schedule{{1, 0.3}}))};
    const Index lengths[] = {50, 7, 33, 61};
    LazyDecoder<float> lazy(model, {capacity, std::ssize(pruners)}, 2, pruners);
    DenseDecoder<float> dense(model, {capacity, std::ssize(pruners)}, 2);
    std::vector<std::unique_ptr<LazyDecoder<float>>> lazy_alone;
    std::vector<std::unique_ptr<DenseDecoder<float>>> dense_alone;
    for (const Pruner& pruner : pruners) {
      lazy_alone.push_back(std::make_unique<LazyDecoder<float>>(model, capacity, 2, pruner));
      dense_alone.push_back(std::make_unique<DenseDecoder<float>>(model, capacity, 2));
    }
    Index revived = 0;
    for (int turn = 0; turn < 24; ++turn) {
      std::vector<std::vector<TokenId>> tokens;
      for (const Index length : lengths) {
        tokens.push_back(random_tokens(random, turn == 0 ? length : 1 + turn % 2, model.config().vocab));
      }
      const std::vector<Tokens> all(tokens.begin(), tokens.end());
      const RowsView<const float> lazy_logits = lazy.step_all(all);
      const RowsView<const float> dense_logits = dense.step_all(all);
      revived += lazy.stats().revived();
      const auto same = [&](std::size_t s, const RowsView<const float>& together, std::span<const float> alone) {
        const std::span<const float> own(together.row(static_cast<Index>(s)), alone.size());
        CHECK(llama::test::relative_error(own, alone) <= 1e-5F);
      };
      for (std::size_t s = 0; s < pruners.size(); ++s) {
        same(s, lazy_logits, lazy_alone[s]->step(all[s]));
        same(s, dense_logits, dense_alone[s]->step(all[s]));
        CHECK(std::ranges::equal(lazy.sequence(static_cast<Index>(s)).depths(), lazy_alone[s]->sequence().depths()));
      }
    }
    CHECK(revived > 0);
    CHECK_THROWS_WITH_AS(dense.step(std::vector<TokenId>{1}), doctest::Contains("a step of 1 sequences"),
                         std::invalid_argument);
  }
}

TEST_CASE("what fails one sequence is thrown, no sequence has changed, and the same step then runs") {
  std::mt19937 random(13);
  const Model<float> model(small_model("mha_4_layers"), 1);
  bool fails = false;
  const lazyllm::AnyPolicy half = lazyllm::KeepRatio(lazyllm::Schedule{{1, 0.5}, {2, 0.5}});
  const lazyllm::AnyPolicy failing = [&](const lazyllm::PrunePoint& point) {
    if (fails && point.layers_run == 2) throw std::runtime_error("no policy");
    return half(point);
  };
  const std::vector<Pruner> pruners = {Pruner(half), Pruner(failing)};
  LazyDecoder<float> decoder(model, {64, 2}, 1, pruners);
  LazyDecoder<float> good(model, {64, 2}, 1, pruners);
  for (const Index count : {20, 1, 1}) {
    std::vector<std::vector<TokenId>> tokens;
    for (int s = 0; s < 2; ++s) tokens.push_back(random_tokens(random, count, model.config().vocab));
    const std::vector<Tokens> all(tokens.begin(), tokens.end());
    const Index before = decoder.length(0);
    fails = true;
    CHECK_THROWS_WITH_AS(decoder.step_all(all), "no policy", std::runtime_error);
    fails = false;
    for (const Index s : {0, 1}) CHECK(decoder.length(s) == before);
    const RowsView<const float> expected = good.step_all(all);
    const RowsView<const float> logits = decoder.step_all(all);
    for (Index s = 0; s < 2; ++s) {
      CHECK(std::equal(logits.row(s), logits.row(s) + logits.width, expected.row(s)));
      CHECK(std::ranges::equal(decoder.sequence(s).depths(), good.sequence(s).depths()));
    }
  }
}

TEST_CASE("steps of some of the sequences, which come and go, give what each sequence gives alone") {
  constexpr Index capacity = 100;
  constexpr std::size_t slots = 4;
  std::mt19937 random(6);
  for (const char* name : small_models) {
    const Model<float> model(small_model(name), 2);
    const Pruner pruner(lazyllm::KeepRatio(lazyllm::Schedule{{1, 0.5}, {3, 0.4}}),
                        lazyllm::AttentionScore{.last_queries = 3, .over_layers = true});
    LazyDecoder<float> lazy(model, {capacity, slots}, 2, pruner);
    DenseDecoder<float> dense(model, {capacity, slots}, 2);
    std::vector<std::unique_ptr<LazyDecoder<float>>> lazy_alone(slots);
    std::vector<std::unique_ptr<DenseDecoder<float>>> dense_alone(slots);
    Index some = 0, all_of_them = 0;
    for (int step = 0; step < 40; ++step) {
      std::vector<std::vector<TokenId>> tokens(slots);
      std::vector<std::size_t> running;
      for (std::size_t s = 0; s < slots; ++s) {
        const unsigned choice = random() % 8;
        if (choice == 0 || (dense_alone[s] && dense_alone[s]->length() > capacity - 40)) {  // another request comes
          const auto slot = static_cast<Index>(s);
          lazy.clear(slot);
          dense.clear(slot);
          CHECK(lazy.length(slot) == 0);
          CHECK(dense.length(slot) == 0);
          dense_alone[s].reset();
        }
        if (choice < 3) continue;
        if (!dense_alone[s]) {
          lazy_alone[s] = std::make_unique<LazyDecoder<float>>(model, capacity, 2, pruner);
          dense_alone[s] = std::make_unique<DenseDecoder<float>>(model, capacity, 2);
          tokens[s] = random_tokens(random, 20 + static_cast<Index>(random() % 20), model.config().vocab);
        } else {
          tokens[s] = random_tokens(random, 1, model.config().vocab);
        }
        running.push_back(s);
      }
      if (running.empty()) continue;
      ++(running.size() == slots ? all_of_them : some);
      const std::vector<Tokens> lists(tokens.begin(), tokens.end());
      const RowsView<const float> lazy_logits = lazy.step_all(lists);
      const RowsView<const float> dense_logits = dense.step_all(lists);
      CHECK(lazy_logits.rows == std::ssize(running));
      CHECK(dense_logits.rows == std::ssize(running));
      for (std::size_t i = 0; i < running.size(); ++i) {
        const std::size_t s = running[i];
        const auto row = static_cast<Index>(i);
        const auto same = [&](const RowsView<const float>& together, std::span<const float> alone) {
          CHECK(llama::test::relative_error(std::span(together.row(row), alone.size()), alone) <= 1e-5F);
        };
        same(lazy_logits, lazy_alone[s]->step(tokens[s]));
        same(dense_logits, dense_alone[s]->step(tokens[s]));
        CHECK(std::ranges::equal(lazy.sequence(static_cast<Index>(s)).depths(), lazy_alone[s]->sequence().depths()));
      }
    }
    CHECK(some > 10);
    CHECK(all_of_them > 2);
    CHECK_THROWS_WITH_AS(lazy.step_all(std::vector<Tokens>(slots)), doctest::Contains("0 tokens"),
                         std::invalid_argument);
  }
}

TEST_CASE("bfloat16: every way to keep everything equals the dense path bit for bit, and schedules prune and revive") {
  std::mt19937 random(4);
  for (const char* name : small_models) {
    const Model<Eigen::bfloat16> model(small_model(name), 2);
    const std::vector<TokenId> prompt = random_tokens(random, 50, model.config().vocab);
    DenseDecoder<Eigen::bfloat16> dense(model, 64, 2);
    LazyDecoder<Eigen::bfloat16> lazy(model, 64, 2, Pruner(lazyllm::KeepRatio(lazyllm::Schedule{{1, 1.0}})));
    CHECK(copy(lazy.step(prompt)) == copy(dense.step(prompt)));
    LazyDecoder<Eigen::bfloat16> pruned(model, 64, 2,
                                        Pruner(lazyllm::KeepRatio(lazyllm::Schedule{{1, 0.5}, {2, 0.5}})));
    Index revived = 0;
    pruned.step(prompt);
    CHECK(pruned.stats().layers[2].computed == 13);
    for (int i = 0; i < 12; ++i) {
      pruned.step(random_tokens(random, 1, model.config().vocab));
      revived += pruned.stats().revived();
    }
    CHECK(revived > 0);
  }
}

TEST_CASE("a step that does not fit or names an unknown token changes nothing") {
  std::mt19937 random(5);
  const Model<float> model(small_model("mha_4_layers"), 1);
  const Pruner pruner(lazyllm::KeepRatio(lazyllm::Schedule{{1, 0.5}, {3, 0.5}}));
  LazyDecoder<float> decoder(model, 40, 1, pruner);
  LazyDecoder<float> untroubled(model, 40, 1, pruner);
  const std::vector<TokenId> prompt = random_tokens(random, 30, model.config().vocab);
  CHECK(copy(decoder.step(prompt)) == copy(untroubled.step(prompt)));
  const std::vector<TokenId> too_long = random_tokens(random, 11, model.config().vocab);
  CHECK_THROWS_WITH_AS(decoder.step(too_long), doctest::Contains("41"), std::invalid_argument);
  const std::vector<TokenId> unknown = {3, 97};
  CHECK_THROWS_WITH_AS(decoder.step(unknown), doctest::Contains("token 97 at place 1"), std::invalid_argument);
  CHECK_THROWS_AS(decoder.step({}), std::invalid_argument);
  const std::vector<TokenId> next = {5};
  CHECK(copy(decoder.step(next)) == copy(untroubled.step(next)));
}
