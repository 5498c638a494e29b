/// The host as several ranks, which are threads here; test_generate_ranks.cpp has them as processes of MPI.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/model/cpu.hpp"
#include "examples/llama/model/log_probabilities.hpp"
#include "examples/llama/model/shard.hpp"
#include "tests/examples/llama/model/small_models.hpp"
#include "tests/support/source_folder.hpp"
#include "tests/support/thread_ranks.hpp"

namespace {

thread_local bool next_allocation_fails = false;

}  // namespace

void* operator new(std::size_t bytes) {
  void* const memory = std::exchange(next_allocation_fails, false) ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

using namespace llama;
using lazyllm::test::ThreadRanks;

namespace {

Checkpoint open(const std::string& name) {
  return name == "tiny" ? Checkpoint(lazyllm::test::source_folder() / "examples/models/tiny")
                        : llama::test::small_model(name);
}

std::shared_ptr<RankGroup> group_of(ThreadRanks& threads, Index rank) {
  return std::make_shared<RankGroup>(rank, threads.count(), threads.all_reduce(rank), threads.sum(rank));
}

/// What a run showed: the active tokens of every layer of every step, and the most likely tokens.
struct Seen {
  std::vector<std::vector<Position>> active;
  std::vector<TokenId> tokens;

  bool operator==(const Seen&) const = default;
};

lazyllm::TokenPruner<lazyllm::AnyPolicy> pruner_of(const std::string& schedule, const std::string& score,
                                                   Index layers) {
  return lazyllm::make_pruner(lazyllm::parse_policy(schedule, layers),
                              {.score = lazyllm::parse_score(score), .protect_first = 2, .max_revived = 3});
}

/// A batch of two prompts and some greedy tokens of each.
template <class T>
Seen generate(const Model<T>& model, const std::string& schedule, const std::string& score) {
  Seen seen;
  LazyDecoder<T> decoder(model, {96, 2}, 1, pruner_of(schedule, score, model.config().layers));
  decoder.observe_layers(
      [&](const lazyllm::LayerPlan& plan) { seen.active.emplace_back(plan.keys().begin(), plan.keys().end()); });
  std::vector<std::vector<TokenId>> texts(2);
  for (TokenId i = 0; i < 70; ++i) texts[0].push_back((i * 37 + 11) % 90 + 3);
  for (TokenId i = 0; i < 45; ++i) texts[1].push_back((i * i + 5) % 90 + 3);
  for (int step = 0; step < 6; ++step) {
    const std::vector<Tokens> tokens(texts.begin(), texts.end());
    const RowsView<const float> logits = decoder.step_all(tokens);
    for (Index s = 0; s < 2; ++s) {
      const auto best = std::max_element(logits.row(s), logits.row(s) + logits.width) - logits.row(s);
      seen.tokens.push_back(static_cast<TokenId>(best));
      texts[static_cast<std::size_t>(s)] = {seen.tokens.back()};
    }
  }
  return seen;
}

/// The CPU with a failure on the thread that asks for one.
struct FailingDevice : CpuDevice {
  static inline thread_local std::optional<Index> attention_of_layer;
  static inline thread_local std::optional<Index> feed_forward;  // calls until it fails

  template <class T>
  static void attention(Context& context, const Plan<T>& plan, Index layer, RowsView<const T> queries,
                        RowsView<T> out) {
    if (attention_of_layer == layer) throw std::runtime_error("no attention");
    CpuDevice::attention(context, plan, layer, queries, out);
  }
  template <class T>
  static void swiglu(Context& context, RowsView<const T> gate_up, RowsView<T> out) {
    if (feed_forward && (*feed_forward)-- == 0) throw std::runtime_error("no feed-forward");
    CpuDevice::swiglu(context, gate_up, out);
  }
};

}  // namespace

TEST_CASE("ranks: each has its part, and all parts make the whole") {
  ModelConfig config;
  config.vocab = 101;
  config.heads = 12;
  config.kv_heads = 3;
  config.intermediate_size = 50;
  for (Index count = 1; count <= 12; ++count) {
    CAPTURE(count);
    Index head = 0;
    Index row = 0;
    Index token = 0;
    for (Index rank = 0; rank < count; ++rank) {
      const Shard shard = shard_of(config, rank, count);
      CHECK(shard.heads.first == head);
      CHECK(shard.intermediate.first == row);
      CHECK(shard.vocab.first == token);
      head += shard.heads.count;
      row += shard.intermediate.count;
      token += shard.vocab.count;
      CHECK(shard.heads.count >= 1);
      CHECK(shard.heads.count % shard.kv_heads.count == 0);
      const Index group = shard.heads.count / shard.kv_heads.count;
      for (Index h = 0; h < shard.heads.count; ++h) {  // each query head looks at its own key head
        CHECK((shard.heads.first + h) / 4 == shard.kv_heads.first + h / group);
      }
    }
    CHECK(head == 12);
    CHECK(row == 50);
    CHECK(token == 101);
  }
  CHECK_THROWS_WITH_AS(shard_of(config, 0, 13),
                       "13 ranks are out of range 1 to 12 for 12 query heads on 3 key heads, a feed-forward of 50 and "
                       "a vocabulary of 101",
                       std::invalid_argument);
}

TEST_CASE("ranks: a rank reads its part of the weights and nothing else") {
  const Checkpoint checkpoint = open("gqa2_6_layers");
  const ModelConfig& config = checkpoint.config();
  const auto values = [](const Tensor& tensor) {
    std::vector<float> all(static_cast<std::size_t>(tensor.elements()));
    const Index width = tensor.shape.back();
    for (Index row = 0; row < tensor.elements() / width; ++row) {
      to_float(tensor, row * width,
               std::span(all).subspan(static_cast<std::size_t>(row * width), static_cast<std::size_t>(width)));
    }
    return all;
  };
  const std::string layer = "model.layers.0.";
  const Index width = config.heads * config.head_dim;
  const std::vector<float> output =
      values(checkpoint.tensor(layer + "self_attn.o_proj.weight", {config.hidden_size, width}));
  const std::vector<float> gate =
      values(checkpoint.tensor(layer + "mlp.gate_proj.weight", {config.intermediate_size, config.hidden_size}));
  for (Index rank = 0; rank < 2; ++rank) {
    const Shard shard = shard_of(config, rank, 2);
    const WeightSource part = weights_of(llama::weights_of(checkpoint), config, shard);
    const Index own = shard.heads.count * config.head_dim;
    const std::vector<float> own_output = values(part(layer + "self_attn.o_proj.weight", {config.hidden_size, own}));
    for (Index row = 0; row < config.hidden_size; ++row) {
      const auto first = output.begin() + row * width + shard.heads.first * config.head_dim;
      CHECK(std::equal(first, first + own, own_output.begin() + row * own));
    }
    const Tensor own_gate = part(layer + "mlp.gate_proj.weight", {shard.intermediate.count, config.hidden_size});
    CHECK(own_gate.shape[0] == config.intermediate_size / 2);
    CHECK(std::ranges::equal(
        values(own_gate),
        std::span(gate).subspan(static_cast<std::size_t>(shard.intermediate.first * config.hidden_size),
                                static_cast<std::size_t>(own_gate.elements()))));
    CHECK(part("model.norm.weight", {config.hidden_size}).shape[0] == config.hidden_size);
  }
}

TEST_CASE("ranks: tokens equal one rank's, kept sets are the same on all ranks, and in f32 one rank's") {
  struct Run {
    const char* model;
    const char* schedule;
    const char* score;
  };
  for (const Run& run :
       {Run{"mha_4_layers", "1:0.5,3:0.6", "last"}, Run{"gqa2_6_layers", "2:0.4,4:0.5", "mean:8+pool:3"},
        Run{"gqa4_8_layers", "2:0.5,5:0.5", "mean:4+heads:max"}, Run{"qwen2_5_layers", "top-p@2:0.8", "last+layers"},
        Run{"qwen3_4_layers", "1:0.6,3:0.5", "max:4"}, Run{"tiny", "3:0.5,7:0.5", "max:8"}}) {
    CAPTURE(std::string(run.model));
    const Checkpoint checkpoint = open(run.model);
    const Seen alone = generate(Model<float>(checkpoint, 1), run.schedule, run.score);
    for (const Index count : {2, 4}) {
      CAPTURE(count);
      if (count > checkpoint.config().heads) continue;
      ThreadRanks threads(count);
      std::vector<Seen> whole(static_cast<std::size_t>(count));
      std::vector<Seen> rounded(static_cast<std::size_t>(count));
      threads.run([&](Index rank) {
        const auto place = static_cast<std::size_t>(rank);
        const WeightSource weights = llama::weights_of(checkpoint);
        whole[place] =
            generate(Model<float>(checkpoint.config(), weights, 1, group_of(threads, rank)), run.schedule, run.score);
        rounded[place] = generate(Model<Eigen::bfloat16>(checkpoint.config(), weights, 1, group_of(threads, rank)),
                                  run.schedule, run.score);
      });
      for (const Seen& seen : whole) CHECK(seen == alone);
      for (const Seen& seen : rounded) CHECK(seen == rounded.front());
    }
  }
}

TEST_CASE("ranks: dense decoding and log probabilities equal one rank's") {
  const Checkpoint checkpoint = open("gqa4_8_layers");
  std::vector<TokenId> tokens;
  for (TokenId i = 0; i < 40; ++i) tokens.push_back((i * 37 + 11) % 90 + 3);
  const Model<float> model(checkpoint, 1);
  DenseDecoder<float> alone(model, 64, 1);
  const std::span<const float> expected = alone.step(tokens);
  const TokenLogProbabilities likely = token_log_probabilities(model, tokens, 1);
  ThreadRanks threads(2);
  threads.run([&](Index rank) {
    const Model<float> part(checkpoint.config(), llama::weights_of(checkpoint), 1, group_of(threads, rank));
    DenseDecoder<float> dense(part, 64, 1);
    const std::span<const float> logits = dense.step(tokens);
    for (std::size_t i = 0; i < logits.size(); ++i) CHECK(logits[i] == doctest::Approx(expected[i]).epsilon(1e-4));
    const TokenLogProbabilities found = token_log_probabilities(part, tokens, 1);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      CHECK(found.values[i] == doctest::Approx(likely.values[i]).epsilon(1e-4));
    }
    CHECK(dense.kv_bytes() == alone.kv_bytes());  // both have the one key head
  });
}

TEST_CASE("ranks: each fails in each layer; all have the same error, and the same step then runs") {
  const Checkpoint checkpoint = open("gqa4_8_layers");
  const Index layers = checkpoint.config().layers;
  std::vector<TokenId> prompt;
  for (TokenId i = 0; i < 30; ++i) prompt.push_back((i * 37 + 11) % 90 + 3);
  ThreadRanks threads(2);
  threads.run([&](Index rank) {
    using Failing = Model<float, FailingDevice>;
    const Failing model(checkpoint.config(), llama::weights_of(checkpoint), 1, group_of(threads, rank));
    const auto pruner = pruner_of("2:0.5,5:0.5", "last", layers);
    LazyDecoder<float, FailingDevice> good(model, 64, 1, pruner);
    LazyDecoder<float, FailingDevice> decoder(model, 64, 1, pruner);
    const std::vector<TokenId> more = {7};
    for (const std::vector<TokenId>* tokens : {&std::as_const(prompt), &more}) {
      const Index before = decoder.length();
      for (Index failing = 0; failing < 2; ++failing) {
        const std::string place = "lazyllm: rank " + std::to_string(failing) + " of 2: ";
        for (Index layer = 0; layer < layers; ++layer) {
          if (rank == failing) FailingDevice::attention_of_layer = layer;
          CHECK_THROWS_WITH_AS(decoder.step(*tokens), (place + "no attention").c_str(), lazyllm::rank_error);
          FailingDevice::attention_of_layer.reset();
          if (rank == failing) FailingDevice::feed_forward = layer;
          CHECK_THROWS_WITH_AS(decoder.step(*tokens), (place + "no feed-forward").c_str(), lazyllm::rank_error);
          FailingDevice::feed_forward.reset();
          CHECK(decoder.length() == before);
        }
      }
      const std::span<const float> expected = good.step(*tokens);
      CHECK(std::ranges::equal(decoder.step(*tokens), expected));
      CHECK(std::ranges::equal(decoder.sequence().depths(), good.sequence().depths()));
    }
  });
}

TEST_CASE("ranks: one has no memory to list the output rows; all have that error") {
  const Checkpoint checkpoint = open("gqa4_8_layers");
  const Index layers = checkpoint.config().layers;
  ThreadRanks threads(2);
  threads.run([&](Index rank) {
    const Model<float> model(checkpoint.config(), llama::weights_of(checkpoint), 1, group_of(threads, rank));
    LazyDecoder<float> decoder(model, {64, 2}, 1, pruner_of("2:0.5", "last", layers));
    bool fails = false;
    decoder.observe_layers([&](const lazyllm::LayerPlan& plan) {
      if (rank == 1 && fails && plan.outputs_only()) next_allocation_fails = true;
    });
    const std::vector<TokenId> prompt = {3, 1, 4, 1, 5, 9, 2, 6};
    const std::vector<Tokens> one = {prompt, {}}, both = {prompt, prompt};
    decoder.step_all(one);  // all other lists have room
    decoder.clear();
    fails = true;
    CHECK_THROWS_WITH_AS(decoder.step_all(both), doctest::Contains("rank 1 of 2: std::bad_alloc"), lazyllm::rank_error);
    fails = false;
    CHECK(decoder.step_all(both).rows == 2);
  });
}

TEST_CASE("ranks: a weight that is no number on one rank, in each layer, ends the sequence's step on all") {
  const Checkpoint checkpoint = open("mha_4_layers");
  const ModelConfig& config = checkpoint.config();
  std::vector<TokenId> prompt;
  for (TokenId i = 0; i < 30; ++i) prompt.push_back((i * 37 + 11) % 90 + 3);
  for (Index bad = 0; bad < 2; ++bad) {
    for (Index layer = 0; layer + 1 < config.layers; ++layer) {
      ThreadRanks threads(2);
      std::vector<std::string> errors(2);
      threads.run([&](Index rank) {
        std::vector<float> broken(static_cast<std::size_t>(config.heads * config.head_dim * config.hidden_size),
                                  std::numeric_limits<float>::quiet_NaN());
        const WeightSource source = llama::weights_of(checkpoint);
        const WeightSource weights = [&](const std::string& name, const std::vector<Index>& shape) {
          Tensor tensor = source(name, shape);
          if (rank == bad && name == "model.layers." + std::to_string(layer) + ".self_attn.q_proj.weight") {
            tensor.dtype = DType::f32;
            tensor.data = reinterpret_cast<const std::byte*>(broken.data());
          }
          return tensor;
        };
        const Model<float> model(config, weights, 1, group_of(threads, rank));
        LazyDecoder<float> decoder(model, 64, 1, pruner_of("3:0.5", "last", config.layers));
        try {
          decoder.step(prompt);
        } catch (const lazyllm::invalid_argument& error) {
          errors[static_cast<std::size_t>(rank)] = error.what();
        }
        CHECK(decoder.length() == 0);
      });
      CHECK(errors[0].find("layers is not finite") != std::string::npos);
      CHECK(errors[1] == errors[0]);
    }
  }
}
