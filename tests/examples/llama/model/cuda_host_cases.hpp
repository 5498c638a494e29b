#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/library.hpp"
#include "examples/llama/model/any_model.hpp"
#include "examples/llama/model/cuda/cuda_model.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"
#include "tests/examples/llama/embedded_model.hpp"
#include "tests/examples/llama/model/relative_error.hpp"
#include "tests/examples/llama/model/small_models.hpp"
#include "tests/support/runs.hpp"
#include "tests/support/source_folder.hpp"

/// \file
/// Tests of the host on CUDA against the host on the CPU, for a device and for its emulation.

namespace llama::test {

/// The same model on both sides, in f32.
struct Pair {
  explicit Pair(const std::string& name) {
    const Checkpoint checkpoint = small_model(name);
    cpu = open_model(checkpoint.config(), weights_of(checkpoint), {.device = "cpu", .dtype = "f32", .threads = 1});
    cuda = open_cuda_model_f32(checkpoint.config(), weights_of(checkpoint));
  }

  std::unique_ptr<AnyModel> cpu, cuda;
};

inline std::vector<TokenId> random_tokens(std::mt19937& random, Index count, Index vocab) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % static_cast<unsigned>(vocab));
  return tokens;
}

using Pruner = AnyModel::Pruner;

/// One that prunes a few times on the way through `layers` layers, by any score.
inline Pruner random_pruner(std::mt19937& random, Index layers) {
  const auto below = [&](Index end) { return static_cast<Index>(random() % static_cast<unsigned>(end)); };
  std::vector<lazyllm::LayerKeep> points;
  for (Index layer = 1; layer < layers; ++layer) {
    if (below(2) == 0) points.push_back({layer, 0.3 + 0.1 * static_cast<double>(below(6))});
  }
  if (points.empty()) points.push_back({1, 0.5});
  const lazyllm::Schedule schedule(points);
  lazyllm::AttentionScore score;
  score.last_queries = 1 + below(3);
  score.over_layers = below(4) == 0;
  score.pooling = below(4) == 0 ? 3 : 1;
  if (below(4) == 0) return Pruner(lazyllm::KeepTopP(schedule), score);
  if (below(3) == 0) return Pruner(lazyllm::ProtectFirst<lazyllm::KeepRatio>{lazyllm::KeepRatio(schedule), 2}, score);
  return Pruner(lazyllm::KeepRatio(schedule), score);
}

/// Positions that were active in each layer.
using ActiveSets = std::vector<std::vector<Position>>;

inline void record_active_sets(AnyDecoder& decoder, ActiveSets& sets) {
  decoder.observe_layers(
      [&sets](const lazyllm::LayerPlan& plan) { sets.emplace_back(plan.keys().begin(), plan.keys().end()); });
}

inline std::vector<float> copied(std::span<const float> logits) { return {logits.begin(), logits.end()}; }

inline std::vector<float> copied(RowsView<const float> logits) {
  return {logits.data, logits.data + logits.rows * logits.width};
}

/// Runs a prompt and then some tokens, in chunks, on both sides, and compares logits and active sets of every step.
/// Returns how many rows were revived.
inline Index check_equal_runs(const Pair& models, const Pruner& pruner, std::mt19937& random, const KvCacheSize& size,
                              Index prompt, Index steps) {
  const Index vocab = models.cpu->config().vocab;
  const auto cpu = models.cpu->lazy({size.capacity}, pruner);
  const auto cuda = models.cuda->lazy(size, pruner);
  ActiveSets cpu_sets, cuda_sets;
  record_active_sets(*cpu, cpu_sets);
  record_active_sets(*cuda, cuda_sets);
  Index revived = 0;
  for (Index i = 0; i < steps; ++i) {
    const std::vector<TokenId> tokens = random_tokens(random, i == 0 ? prompt : 1 + i % 2, vocab);
    const std::vector<float> expected = copied(cpu->step(tokens));
    CHECK(relative_error(cuda->step(tokens), expected) <= 1e-4F);
    CHECK(cuda_sets == cpu_sets);
    CHECK(std::ranges::equal(cuda->depths(), cpu->depths()));
    CHECK(cuda->operations() == cpu->operations());
    revived += cuda->stats().revived();
  }
  return revived;
}

TEST_CASE("CUDA host: dense logits equal the CPU's, of prompts, tokens and turns") {
  std::mt19937 random(1);
  for (const char* name : small_models) {
    CAPTURE(name);
    const Pair models(name);
    const auto cpu = models.cpu->dense(40);
    const auto cuda = models.cuda->dense(40);
    for (const Index count : {13, 1, 1, 6}) {
      const std::vector<TokenId> tokens = random_tokens(random, count, models.cpu->config().vocab);
      const std::vector<float> expected = copied(cpu->step(tokens));
      CHECK(relative_error(cuda->step(tokens), expected) <= 1e-4F);
    }
    CHECK(cuda->kv_bytes() == cpu->kv_bytes());
  }
}

TEST_CASE("CUDA host: keeping everything equals dense bit for bit") {
  std::mt19937 random(2);
  const Pair models("gqa2_6_layers");
  for (const lazyllm::AnyPolicy& policy :
       {lazyllm::AnyPolicy(lazyllm::KeepAll()),
        lazyllm::AnyPolicy(lazyllm::KeepRatio(lazyllm::Schedule{{1, 1.0}, {2, 1.0}}))}) {
    const auto dense = models.cuda->dense(30);
    const auto lazy = models.cuda->lazy(30, Pruner(policy));
    for (const Index count : {9, 1, 3}) {
      const std::vector<TokenId> tokens = random_tokens(random, count, models.cpu->config().vocab);
      const std::vector<float> expected = copied(dense->step(tokens));
      CHECK(copied(lazy->step(tokens)) == expected);
    }
  }
}

TEST_CASE("CUDA host: the embedded model answers as on the CPU, dense and pruned") {
  const Checkpoint checkpoint(embedded_model);
  const ModelConfig& config = checkpoint.config();
  const auto tokenizer = open_tokenizer(embedded_model, config.vocab);
  const std::vector<TokenId> prompt = tokenizer->encode(embedded_prompt, true);
  const auto cpu = open_model(config, weights_of(checkpoint), {.device = "cpu", .dtype = "f32", .threads = 1});
  const auto cuda = open_cuda_model_f32(config, weights_of(checkpoint));
  const Index capacity = std::ssize(prompt) + 8;
  // The most likely tokens of the answer, one after the other.
  const auto answer = [&](AnyDecoder& decoder) {
    std::vector<TokenId> tokens;
    std::span<const float> logits = decoder.step(prompt);
    for (int i = 0; i < 3; ++i) {
      tokens.push_back(static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin()));
      if (i < 2) logits = decoder.step(Tokens(tokens).last(1));
    }
    return tokens;
  };
  const std::vector<TokenId> dense = answer(*cuda->dense(capacity));
  CHECK(dense == answer(*cpu->dense(capacity)));
  std::string text;
  for (std::size_t i = 0; i < dense.size(); ++i)
    text += tokenizer->decode(i == 0 ? prompt.back() : dense[i - 1], dense[i]);
  CHECK(text.find(embedded_answer) != std::string::npos);
  const Pruner pruner(lazyllm::KeepRatio(lazyllm::Schedule{{4, 0.6}, {8, 0.5}}));
  const auto lazy = cuda->lazy(capacity, pruner);
  CHECK(answer(*lazy) == answer(*cpu->lazy(capacity, pruner)));
  CHECK(lazy->computed_percent(std::ssize(prompt)) < 90);
}

TEST_CASE("CUDA host: log probabilities equal the CPU's") {
  std::mt19937 random(4);
  for (const char* name : small_models) {
    const Pair models(name);
    for (const Index count : {2, 66}) {
      const std::vector<TokenId> tokens = random_tokens(random, count, models.cpu->config().vocab);
      const TokenLogProbabilities expected = models.cpu->log_probabilities(tokens);
      const TokenLogProbabilities found = models.cuda->log_probabilities(tokens);
      CHECK(found.operations == expected.operations);
      CHECK(relative_error(found.values, expected.values) <= 1e-4F);
    }
    CHECK(models.cuda->kv_bytes(3) == models.cpu->kv_bytes(3));
    CHECK(models.cuda->kv_bytes(3) == models.cpu->dense(3)->kv_bytes());
  }
}

/// Random prompts and schedules: kept sets equal the CPU's, and logits.
inline void check_random_runs(int runs) {
  std::mt19937 random(3);
  Index revived = 0;
  for (int run = 0; run < runs; ++run) {
    CAPTURE(run);
    const Pair models(small_models[run % std::ssize(small_models)]);
    const Pruner pruner = random_pruner(random, models.cpu->config().layers);
    const Index prompt = 3 + static_cast<Index>(random() % 18);
    const Index page_size = run % 2 == 0 ? 0 : 4;
    revived += check_equal_runs(models, pruner, random, {40, 1, page_size}, prompt, 5);
  }
  CHECK(revived > 0);
}

/// Random weights in bf16, which the hosts hold in 16 bits as they are.
inline WeightSource random_weights() {
  auto weights = std::make_shared<std::map<std::string, std::vector<std::uint16_t>>>();
  return [weights](const std::string& name, const std::vector<Index>& shape) {
    std::vector<std::uint16_t>& bits = (*weights)[name];
    if (bits.empty()) {
      std::mt19937 random(static_cast<unsigned>(std::hash<std::string>()(name)));
      const bool norm = shape.size() == 1;
      std::normal_distribution<float> normal(norm ? 1 : 0, norm ? 0.1F : 1 / std::sqrt(static_cast<float>(shape[1])));
      bits.resize(static_cast<std::size_t>(shape[0] * (norm ? 1 : shape[1])));
      for (std::uint16_t& value : bits)
        value = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16);
    }
    return Tensor{DType::bf16, shape, reinterpret_cast<const std::byte*>(bits.data())};
  };
}

/// Dense and pruned runs with heads wide enough for tensor cores, of more queries than a block takes.
inline void check_runs_in_16_bits() {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab = 97;
  config.layers = 3;
  config.heads = 2;
  config.kv_heads = 1;
  config.intermediate_size = 128;
  config.context = 256;
  // Scores in 16 bits differ from host to host, drawn tokens do not; they change from step to step, so that some are
  // revived.
  std::mt19937 random(9);
  std::vector<std::vector<std::uint8_t>> drawn(171, std::vector<std::uint8_t>(171));
  for (auto& mask : drawn) std::ranges::generate(mask, [&random] { return random() % 5 < 3; });
  const Pruner pruner(lazyllm::AnyPolicy([&drawn](const lazyllm::PrunePoint& point) {
    return lazyllm::Selection{
        .kind = lazyllm::Selection::Kind::top_k, .k = 1, .protect_mask = drawn[static_cast<std::size_t>(point.tokens)]};
  }));
  const unsigned cases = lazyllm::test::runs(4);  // each width in each type, whole and in pages
  for (unsigned i = 0; i < cases; ++i) {
    CAPTURE(i);
    config.head_dim = i % 3 == 0 ? 64 : 128;
    config.hidden_size = config.heads * config.head_dim;
    const WeightSource weights = random_weights();
    const auto check = [&](const AnyModel& cuda_model, const char* cpu_dtype, Index page_size) {
      CAPTURE(cpu_dtype);
      const auto cpu_model = open_model(config, weights, {"cpu", cpu_dtype, 1});
      const KvCacheSize size{170, 1, page_size};
      const auto cpu_dense = cpu_model->dense(170);
      const auto cpu_lazy = cpu_model->lazy(170, pruner);
      const auto cuda_dense = cuda_model.dense(size);
      const auto cuda_lazy = cuda_model.lazy(size, pruner);
      Index revived = 0;
      for (const Index count : {150, 1, 1, 5}) {
        const std::vector<TokenId> tokens = random_tokens(random, count, config.vocab);
        CHECK(relative_error(cuda_dense->step(tokens), copied(cpu_dense->step(tokens))) <= 2e-2F);
        CHECK(relative_error(cuda_lazy->step(tokens), copied(cpu_lazy->step(tokens))) <= 2e-2F);
        CHECK(std::ranges::equal(cuda_lazy->depths(), cpu_lazy->depths()));
        revived += cuda_lazy->stats().revived();
      }
      CHECK(revived > 0);
    };
    const Index page_size = i < 2 ? 16 : 0;
    if (i % 2 == 0) {
      check(*open_cuda_model_bf16(config, weights), "bf16", page_size);
    } else {
      check(*open_cuda_model_f16(config, weights), "f32", page_size);
    }
  }
}

TEST_CASE("CUDA host: K/V in pages give what K/V in one piece give, bit for bit") {
  std::mt19937 random(4);
  const Pair models("llama3_4_layers");
  const Pruner pruner(lazyllm::KeepRatio(lazyllm::Schedule{{1, 0.6}, {3, 0.5}}));
  const auto whole = models.cuda->lazy({30, 2}, pruner);
  const auto paged = models.cuda->lazy({30, 2, 4}, pruner);
  Index revived = 0;
  for (const Index count : {11, 1, 1, 2}) {
    const std::vector<TokenId> a = random_tokens(random, count, models.cpu->config().vocab);
    const std::vector<TokenId> b = random_tokens(random, count + 3, models.cpu->config().vocab);
    const std::vector<Tokens> tokens = {a, b};
    const std::vector<float> expected = copied(whole->step_all(tokens));
    CHECK(copied(paged->step_all(tokens)) == expected);
    revived += paged->stats().revived();
  }
  CHECK(revived > 0);
  CHECK(paged->kv_bytes() == whole->kv_bytes() * 32 / 30);
}

TEST_CASE("CUDA host: sequences of different lengths and schedules in one step give what each gives alone") {
  std::mt19937 random(5);
  const Pair models("qwen2_5_layers");
  const std::vector<Pruner> pruners = {
      Pruner(lazyllm::KeepRatio(lazyllm::Schedule{{1, 0.5}, {3, 0.4}})), Pruner(lazyllm::KeepAll()),
      Pruner(lazyllm::KeepTopP(lazyllm::Schedule{{2, 0.8}}),
             lazyllm::AttentionScore{.last_queries = 2, .over_layers = true, .pooling = 3})};
  const Index lengths[] = {12, 3, 17};
  const auto lazy = models.cuda->lazy({30, 3}, pruners);
  const auto dense = models.cuda->dense({30, 3});
  std::vector<std::unique_ptr<AnyDecoder>> lazy_alone, dense_alone;
  for (const Pruner& pruner : pruners) {
    lazy_alone.push_back(models.cuda->lazy(30, pruner));
    dense_alone.push_back(models.cuda->dense(30));
  }
  Index revived = 0;
  for (int turn = 0; turn < 4; ++turn) {
    std::vector<std::vector<TokenId>> tokens;
    for (const Index length : lengths) {
      tokens.push_back(random_tokens(random, turn == 0 ? length : 1 + turn % 2, models.cpu->config().vocab));
    }
    const std::vector<Tokens> all(tokens.begin(), tokens.end());
    const auto check = [&](AnyDecoder& together, std::vector<std::unique_ptr<AnyDecoder>>& alone) {
      const Index vocab = models.cpu->config().vocab;
      const std::vector<float> logits = copied(together.step_all(all));
      for (std::size_t s = 0; s < alone.size(); ++s) {
        const auto width = static_cast<std::size_t>(vocab);
        CHECK(relative_error(alone[s]->step(all[s]), std::span(logits).subspan(s * width, width)) <= 1e-4F);
        CHECK(std::ranges::equal(together.depths(static_cast<Index>(s)), alone[s]->depths()));
      }
    };
    check(*dense, dense_alone);
    check(*lazy, lazy_alone);
    revived += lazy->stats().revived();
  }
  CHECK(revived > 0);
}

/// Steps of a turn of `check_graphs`: a prompt, single tokens, and several at the end.
constexpr Index graph_steps = 8;

/// Prompts and decode steps of two sequences with and without graphs: the same bits. `step_done()` is called after each
/// step with graphs.
template <class StepDone>
void check_graphs(const AnyModel& model, const std::vector<Pruner>& pruners, Index page_size,
                  const StepDone& step_done) {
  std::mt19937 random(11);
  const auto plain = model.lazy({60, 2, page_size}, pruners);
  const auto graphs = model.lazy({60, 2, page_size}, pruners);
  graphs->use_graphs();
  ActiveSets plain_sets, graph_sets;
  record_active_sets(*plain, plain_sets);
  record_active_sets(*graphs, graph_sets);
  for (int turn = 0; turn < 2; ++turn) {
    plain->clear();
    graphs->clear();
    for (Index step = 0; step < graph_steps; ++step) {
      CAPTURE(step);
      const Index count = step == 0 ? 10 : (step == graph_steps - 1 ? 3 : 1);
      const std::vector<TokenId> a = random_tokens(random, count, model.config().vocab);
      const std::vector<TokenId> b = random_tokens(random, step == 0 ? 7 : count, model.config().vocab);
      const std::vector<Tokens> tokens = {a, b};
      const std::vector<float> expected = copied(plain->step_all(tokens));
      CHECK(copied(graphs->step_all(tokens)) == expected);
      CHECK(graph_sets == plain_sets);
      CHECK(graphs->operations() == doctest::Approx(plain->operations()));
      CHECK(graphs->stats().computed() == plain->stats().computed());
      step_done();
    }
  }
}

/// Policies whose decode steps repeat, revive now and then, and sum scores over the layers.
inline std::vector<std::vector<Pruner>> graph_pruners() {
  const lazyllm::Schedule schedule{{1, 0.6}, {3, 0.5}};
  const lazyllm::KeepRatio ratio(schedule);
  const Pruner keep_all{lazyllm::KeepAll()}, revives{ratio};
  const Pruner keeps_computed{lazyllm::AnyPolicy(lazyllm::KeepComputed<lazyllm::KeepRatio>{ratio, 1})};
  const Pruner prefill_only{lazyllm::AnyPolicy(lazyllm::PrefillOnly<lazyllm::KeepRatio>{ratio})};
  const Pruner summed(lazyllm::AnyPolicy(lazyllm::ReviveAtMost<lazyllm::KeepRatio>{ratio, 0}),
                      lazyllm::AttentionScore{.over_layers = true});
  return {{keep_all, keep_all},         {revives, revives},         {keeps_computed, revives},
          {prefill_only, prefill_only}, {keeps_computed, keep_all}, {summed, summed}};
}

TEST_CASE("CUDA host: decode steps that are replayed as graphs equal those that are not, bit for bit") {
  const Pair models("llama3_4_layers");
  Index page_size = 0;
  for (const std::vector<Pruner>& pruners : graph_pruners()) {
    check_graphs(*models.cuda, pruners, page_size, [] {});
    page_size = 4 - page_size;
  }
  CHECK_THROWS_WITH_AS(models.cuda->dense(8)->use_graphs(), "graphs: a dense decoder has none", std::invalid_argument);
  CHECK_THROWS_WITH_AS(models.cpu->lazy(8, Pruner(lazyllm::KeepAll()))->use_graphs(), "graphs: the device has none",
                       std::invalid_argument);
}

TEST_CASE("CUDA host: a step that does not fit or names an unknown token changes nothing") {
  const Pair models("mha_4_layers");
  const auto decoder = models.cuda->lazy(10, Pruner(lazyllm::KeepRatio(lazyllm::Schedule{{1, 0.5}})));
  const auto untroubled = models.cuda->lazy(10, Pruner(lazyllm::KeepRatio(lazyllm::Schedule{{1, 0.5}})));
  const std::vector<TokenId> prompt = {1, 2, 3, 4, 5, 6};
  const std::vector<float> expected = copied(untroubled->step(prompt));
  CHECK(copied(decoder->step(prompt)) == expected);
  CHECK_THROWS_WITH_AS(decoder->step(std::vector<TokenId>{1, 2, 3, 4, 5}), doctest::Contains("11"),
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(decoder->step(std::vector<TokenId>{3, 97}), doctest::Contains("token 97 at place 1"),
                       std::invalid_argument);
  CHECK_THROWS_AS(decoder->step({}), std::invalid_argument);
  const std::vector<float> next = copied(untroubled->step(std::vector<TokenId>{7}));
  CHECK(copied(decoder->step(std::vector<TokenId>{7})) == next);
}

TEST_CASE("CUDA host: a missing weight and one of the wrong shape are reported") {
  const Checkpoint checkpoint = small_model("mha_4_layers");
  ModelConfig wider = checkpoint.config();
  wider.intermediate_size += 2;
  CHECK_THROWS_WITH(open_cuda_model_f32(wider, weights_of(checkpoint)), doctest::Contains("mlp.gate_proj.weight"));
  ModelConfig deeper = checkpoint.config();
  deeper.layers += 1;
  CHECK_THROWS_WITH(open_cuda_model_f32(deeper, weights_of(checkpoint)), doctest::Contains("layers.4."));
}

}  // namespace llama::test
