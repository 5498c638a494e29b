#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "examples/ggml_engine/dense_engine.hpp"
#include "examples/ggml_engine/lazy_engine.hpp"
#include "examples/ggml_engine/llama_cpp.hpp"
#include "examples/llama/model/any_model.hpp"
#include "lazyllm/check.hpp"
#include "tests/examples/ggml_engine/gguf_file.hpp"
#include "tests/examples/llama/files.hpp"
#include "tests/examples/llama/model/small_models.hpp"
#include "tests/examples/llama/process.hpp"
#include "tests/support/source_folder.hpp"

using namespace ggml_engine;
using namespace ggml_engine::test;
using llama::test::TemporaryFolder;

namespace {

/// The embedded model, as a Hugging Face checkpoint and as GGUF. For `qwen2` it gets biases, for `qwen3` norms of
/// heads.
struct Embedded {
  explicit Embedded(GgufModel options = {}) {
    const llama::Checkpoint checkpoint(lazyllm::test::source_folder() / "examples/models/tiny");
    config = checkpoint.config();
    config.qkv_bias = options.architecture == "qwen2";
    config.qk_norm = options.architecture == "qwen3";
    weights = [checkpoint, added = added](const std::string& name, const std::vector<Index>& shape) {
      const bool norm = name.ends_with("q_norm.weight") || name.ends_with("k_norm.weight");
      if (!norm && !name.ends_with(".bias")) return checkpoint.tensor(name, std::span<const Index>(shape));
      std::vector<float>& values = (*added)[name];
      values.resize(static_cast<std::size_t>(shape[0]));
      std::mt19937 generator(static_cast<std::uint32_t>(std::hash<std::string>()(name)));
      for (float& value : values) value = (norm ? 1.5F : 0) + 0.25F * std::normal_distribution<float>()(generator);
      return llama::Tensor{llama::DType::f32, shape, reinterpret_cast<const std::byte*>(values.data())};
    };
    path = folder.path() / "model.gguf";
    GgufWriter(config, weights, std::move(options)).write(path);
  }

  TemporaryFolder folder;
  llama::ModelConfig config;
  /// Weights that the embedded model does not have, by their names.
  std::shared_ptr<std::map<std::string, std::vector<float>>> added =
      std::make_shared<std::map<std::string, std::vector<float>>>();
  llama::WeightSource weights;
  std::string path;
};

std::vector<std::int32_t> random_tokens(Index count, std::uint32_t seed = 1) {
  std::mt19937 generator(seed);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (auto& token : tokens) token = std::uniform_int_distribution<std::int32_t>(2, 1700)(generator);
  return tokens;
}

std::int32_t best(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
}

float largest_difference(std::span<const float> a, std::span<const float> b) {
  REQUIRE(a.size() == b.size());
  float largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

lazyllm::Preset halves() {
  return {.schedule = lazyllm::parse_schedule("4:0.5,8:0.5"),
          .score = lazyllm::parse_score("mean:40+pool:3"),
          .protect_first = 4,
          .protect_last = 8};
}

constexpr Room room{.context = 700, .rows = 128, .queries = 40, .threads = 1};

struct CheckedAttention : Scored {
  void attend(lazyllm::cpu::Context&, const lazyllm::LayerPlan& plan, lazyllm::RowsView<float> hidden) {
    forward->run({2 * layer, 2 * layer + 1}, attended(plan), hidden.data);
  }
};

struct CheckedFeedForward {
  Forward* forward;
  Index layer;
  void feed_forward(lazyllm::cpu::Context&, lazyllm::RowsView<float> hidden) {
    forward->feed_forward(layer, hidden.data, hidden.rows);
  }
};

/// The engine's blocks one by one.
struct CheckedEngine {
  CheckedEngine(const Model& model_, const Room& room_)
      : model(&model_), hidden_size(model->shape().hidden_size), forward(model_, room_) {
    for (Index l = 0; l < model->shape().layers; ++l) {
      layers.emplace_back(CheckedAttention{{&forward, l}}, CheckedFeedForward{&forward, l});
    }
  }
  CheckedEngine(const CheckedEngine&) = delete;

  void embed(lazyllm::cpu::Context&, std::span<const std::int32_t> tokens, lazyllm::Positions,
             lazyllm::RowsView<float> rows) {
    forward.embed(tokens, rows.data);
  }
  std::vector<float> logits(lazyllm::cpu::Context&, lazyllm::RowsView<float> rows) {
    return forward.logits(rows.data, rows.rows);
  }
  std::vector<float> dense(lazyllm::cpu::Context&, std::span<const std::int32_t> tokens) {
    return DenseEngine(*model, forward.room()).run(tokens);
  }
  void poison(lazyllm::cpu::Context&, Index layer, Index /*sequence*/, lazyllm::Position position) {
    // Not NaN: ggml's flash attention multiplies the V of masked keys by 0.
    const std::vector<float> bad(static_cast<std::size_t>(model->shape().kv_width()), 1e20F);
    for (ggml_tensor* cache : {forward.keys(layer), forward.values(layer)}) {
      REQUIRE(cache->type == GGML_TYPE_F32);
      ggml_backend_tensor_set(cache, bad.data(), static_cast<std::size_t>(position) * cache->nb[1], cache->nb[1]);
    }
  }
  /// Softmax of the kept Q times the cached K, in double.
  std::vector<float> probabilities(lazyllm::cpu::Context&, const lazyllm::LayerPlan& plan, Index, Index row) {
    const Shape& shape = model->shape();
    const Index kept = std::min(forward.room().queries, plan.rows());
    const auto* const query = static_cast<const float*>(forward.queries(plan.layer())->data) +
                              (row - (plan.rows() - kept)) * shape.heads * shape.head_dim;
    const auto* const keys = static_cast<const float*>(forward.keys(plan.layer())->data);
    const auto visible = plan.keys().first(static_cast<std::size_t>(plan.key_limits()[static_cast<std::size_t>(row)]));
    std::vector<float> all;
    for (Index head = 0; head < shape.heads; ++head) {
      std::vector<double> p;
      for (const auto key : visible) {
        double dot = 0;
        for (Index i = 0; i < shape.head_dim; ++i) {
          dot += query[head * shape.head_dim + i] *
                 keys[key * shape.kv_width() + head / (shape.heads / shape.kv_heads) * shape.head_dim + i];
        }
        p.push_back(dot / std::sqrt(shape.head_dim));
      }
      const double highest = std::ranges::max(p);
      double sum = 0;
      for (double& value : p) sum += value = std::exp(value - highest);
      for (const double value : p) all.push_back(static_cast<float>(value / sum));
    }
    return all;
  }

  const Model* model;
  Index hidden_size;
  Forward forward;
  std::vector<lazyllm::LazyDecoderLayer<CheckedAttention, CheckedFeedForward>> layers;
};

}  // namespace

TEST_CASE("dense: logits equal llama.cpp's bit for bit") {
  log_errors_only();
  for (const std::string architecture : {"llama", "qwen2", "qwen3"}) {
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_Q8_0, GGML_TYPE_Q4_1, GGML_TYPE_Q4_0}) {
      CAPTURE(architecture);
      CAPTURE(ggml_type_name(type));
      const Embedded embedded({.architecture = architecture, .matrices = type});
      const Model model(embedded.path);
      Room threads = room;  // two share the keys of a decode step
      if (type == GGML_TYPE_Q4_1) threads.threads = 2;
      DenseEngine engine(model, threads);
      LlamaCpp reference(embedded.path, threads);
      std::vector<std::int32_t> tokens = random_tokens(600);
      for (int step = 0; step < 8; ++step) {
        const auto logits = engine.run(tokens), expected = reference.run(tokens);
        CHECK(largest_difference(logits, expected) == 0);
        tokens = {best(expected)};
      }
    }
  }
}

TEST_CASE("dense: heads that are wider than the hidden rows, and a file that does not say how wide they are") {
  const auto check = [](const std::string& path, Index hidden_size, Index head_dim) {
    const Model model(path);
    CHECK(model.shape().hidden_size == hidden_size);
    CHECK(model.shape().head_dim == head_dim);
    const Room small{.context = 100, .rows = 128, .queries = 40, .threads = 1};
    DenseEngine engine(model, small);
    LlamaCpp reference(path, small);
    std::vector<std::int32_t> tokens = random_tokens(80);
    for (std::int32_t& token : tokens) token %= 97;
    CHECK(largest_difference(engine.run(tokens), reference.run(tokens)) == 0);
  };
  const TemporaryFolder folder;
  const std::string path = folder.path() / "qwen3.gguf";
  const llama::Checkpoint checkpoint = llama::test::small_model("qwen3_4_layers");
  GgufWriter(checkpoint.config(), llama::weights_of(checkpoint), {.architecture = "qwen3"}).write(path);
  check(path, 32, 16);
  check(Embedded({.left_out = {"attention.key_length", "attention.value_length"}}).path, 128, 32);
}

TEST_CASE("keeping everything equals the dense engine bit for bit") {
  const Embedded embedded({.matrices = GGML_TYPE_Q4_1});
  const Model model(embedded.path);
  DenseEngine dense(model, room);
  LazyEngine lazy(model, room, Pruner(lazyllm::KeepAll()));
  std::vector<std::int32_t> tokens = random_tokens(600);
  for (int step = 0; step < 4; ++step) {
    const auto logits = lazy.run(tokens);
    CHECK(logits == dense.run(tokens));
    tokens = {best(logits)};
  }
}

TEST_CASE("the blocks are right") {
  for (const std::string architecture : {"llama", "qwen2", "qwen3"}) {
    CAPTURE(architecture);
    const Embedded embedded({.architecture = architecture});
    const Model model(embedded.path);
    lazyllm::cpu::Context context;
    const auto make = [&](Index, Index tokens) {
      return CheckedEngine(model,
                           {.context = tokens, .rows = 80, .queries = 4, .threads = 1, .cache_type = GGML_TYPE_F32});
    };
    // Attention takes another way from 64 rows on, and products from 2.
    const auto report = lazyllm::check_engine(context, make, random_tokens(200), {.sequences = 1, .tolerance = 1e-4F});
    INFO(report.text());
    CHECK(report.passed());
  }
}

TEST_CASE("a graph for each segment equals layer by layer") {
  const Embedded embedded({.matrices = GGML_TYPE_Q8_0});
  const Model model(embedded.path);
  LazyEngine lazy(model, room, lazyllm::make_pruner(halves()));
  CheckedEngine engine(model, room);
  lazyllm::cpu::Context context;
  lazyllm::cpu::Sequence<float> sequence(model.shape().layers, model.shape().hidden_size);
  const auto pruner = lazyllm::make_pruner(halves());
  lazyllm::Step<lazyllm::cpu::Sequence<float>, Pruner> step;
  std::vector<std::int32_t> tokens = random_tokens(600);
  Index revived = 0;
  for (int i = 0; i < 4; ++i) {
    const auto logits = lazy.run(tokens);
    engine.embed(context, tokens, {}, step.begin(context, sequence, pruner, std::ssize(tokens)));
    for (auto& layer : engine.layers) layer.forward(context, step);
    CHECK(logits == engine.logits(context, step.end().rows));
    CHECK(std::ranges::equal(lazy.sequence().depths(), sequence.depths()));
    revived += lazy.stats().revived();
    tokens = {best(logits)};
  }
  CHECK(revived > 100);
  CHECK(lazyllm::computed_share(lazy.sequence().depths(), 12) < 0.95);
}

TEST_CASE("a float file: the reference engine keeps the same tokens") {
  for (const std::string architecture : {"llama", "qwen2", "qwen3"}) {
    CAPTURE(architecture);
    const Embedded embedded({.architecture = architecture});
    const Model model(embedded.path);
    Room exact = room;
    exact.cache_type = GGML_TYPE_F32;
    LazyEngine lazy(model, exact, lazyllm::make_pruner(halves()));
    const auto reference = llama::open_model(embedded.config, embedded.weights, {.threads = 1});
    const auto host = reference->lazy({room.context}, lazyllm::make_pruner(halves()));
    std::vector<std::int32_t> tokens = random_tokens(600);
    for (int step = 0; step < 4; ++step) {
      const auto logits = lazy.run(tokens);
      const auto expected = host->step(tokens);
      CHECK(std::ranges::equal(lazy.sequence().depths(), host->depths()));
      CHECK(best(logits) == best(expected));
      tokens = {best(logits)};
    }
  }
}

TEST_CASE("what followed the last token earlier comes back, as in the reference engine") {
  const Embedded embedded({.architecture = "llama"});
  const Model model(embedded.path);
  Room exact = room;
  exact.cache_type = GGML_TYPE_F32;
  const lazyllm::Preset preset{.schedule = lazyllm::parse_schedule("4:0.2"),
                               .decode_revived = 0,
                               .continuations = 3};  // nothing else comes back
  LazyEngine lazy(model, exact, lazyllm::make_pruner(preset));
  const auto reference = llama::open_model(embedded.config, embedded.weights, {.threads = 1});
  const auto host = reference->lazy({room.context}, lazyllm::make_pruner(preset));
  std::vector<std::int32_t> tokens = random_tokens(600);
  for (std::int32_t& token : tokens) token %= 20;
  Index revived = 0;
  for (std::int32_t next = 0; next < 8; ++next) {
    lazy.run(tokens);
    host->step(tokens);
    CHECK(std::ranges::equal(lazy.sequence().depths(), host->depths()));
    revived += lazy.stats().revived();
    tokens = {next};
  }
  CHECK(revived > 8);
  CHECK(revived <= 7 * 3);
}

TEST_CASE("graphs take no more memory than was reserved") {
  const Embedded embedded;
  const Model model(embedded.path);
  LazyEngine lazy(model, room, lazyllm::make_pruner(halves()));
  const auto reserved = lazy.forward().compute_bytes();
  CHECK(reserved > 0);
  lazy.run(random_tokens(690));
  for (int i = 0; i < 10; ++i) lazy.run(random_tokens(1));
  CHECK(lazy.forward().compute_bytes() == reserved);
}

TEST_CASE("tokens that do not fit are refused, and change nothing") {
  const Embedded embedded;
  const Model model(embedded.path);
  LazyEngine lazy(model, room, lazyllm::make_pruner(halves()));
  DenseEngine dense(model, room);
  const auto tokens = random_tokens(701);
  const auto fitting = std::span(tokens).first(700);
  CHECK_THROWS_WITH(lazy.run(tokens), "701 tokens after 0 are out of range 1 to 700, what is left of the context");
  CHECK_THROWS_WITH(dense.run(tokens), "701 tokens after 0 are out of range 1 to 700, what is left of the context");
  CHECK_THROWS_WITH(lazy.run(std::vector<std::int32_t>{5, 1792}), "token 1792 is out of range 0 to 1791");
  CHECK(lazy.sequence().length() == 0);
  lazy.run(fitting);
  CHECK_THROWS_WITH(lazy.run(std::span(tokens).first(1)),
                    "1 tokens after 700 are out of range 1 to 0, what is left of the context");
  CHECK_THROWS_WITH(Forward(model, {.context = 4097}), "4097 tokens are out of range 1 to 4096, the model's context");
}

TEST_CASE("files that are not right are refused") {
  const auto refused = [](const std::string& path, const std::string& part) {
    std::string message;
    try {
      const Model model(path);
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    CAPTURE(message);
    CAPTURE(part);
    CHECK(message.starts_with(path + ": "));
    CHECK(message.find(part) != std::string::npos);
  };
  const TemporaryFolder folder;
  refused(folder.path() / "absent.gguf", "no GGUF file");
  refused(folder.write("text.gguf", "This is a text."), "no GGUF file");
  refused(folder.write("empty.gguf", ""), "no GGUF file");
  const auto made = [&](GgufModel model) { return std::make_unique<Embedded>(std::move(model)); };
  refused(made({.architecture = "gemma"})->path, "the architecture is gemma; this engine knows llama, qwen2 and qwen3");
  refused(made({.left_out = {"block_count"}})->path, "there is no llama.block_count");
  refused(made({.left_out = {"blk.3.ffn_up.weight"}})->path, "there is no tensor blk.3.ffn_up.weight");
  refused(made({.left_out = {"token_embd.weight"}})->path, "there is no tensor token_embd.weight");
  refused(made({.wrong_width = 64})->path, "attn_norm.weight has 128 x 1 x 1 elements, not 64 x 1 x 1");

  const auto with = [&](const auto& change) {
    const Embedded embedded;
    GgufWriter writer(embedded.config, embedded.weights, {});
    change(writer.file());
    const auto path = folder.path() / "changed.gguf";
    writer.write(path);
    return path.string();
  };
  refused(with([](auto* file) { gguf_set_val_str(file, "llama.block_count", "12"); }),
          "llama.block_count has the type str");
  refused(with([](auto* file) { gguf_set_val_u32(file, "llama.block_count", 13); }), "there is no tensor blk.12.");
  refused(with([](auto* file) { gguf_set_val_u32(file, "llama.attention.head_count", 0); }),
          "llama.attention.head_count 0 is out of range 1 to");
  refused(with([](auto* file) { gguf_set_val_u32(file, "llama.attention.head_count_kv", 3); }),
          "4 query heads are no multiple of 3 key heads");
  refused(with([](auto* file) { gguf_set_val_f32(file, "llama.rope.freq_base", NAN); }), "llama.rope.freq_base nan");
  refused(with([](auto* file) { gguf_set_val_u32(file, "llama.expert_count", 8); }), "llama.expert_count 8");
  refused(with([](auto* file) { gguf_set_val_str(file, "llama.rope.scaling.type", "yarn"); }), "rope.scaling.type");
}

TEST_CASE("files that are cut off or damaged are refused, or run") {
  const Embedded embedded;
  const std::string bytes = llama::test::read(embedded.path);
  const TemporaryFolder folder;
  const auto survives = [&](const std::string& changed) {
    const auto path = folder.write("damaged.gguf", changed).string();
    try {
      const Model model(path);
      return true;
    } catch (const std::runtime_error&) {
      return false;
    }
  };
  CHECK(survives(bytes));
  for (const double share : {0.0001, 0.001, 0.003, 0.01, 0.1, 0.5, 0.9, 0.9999}) {
    CAPTURE(share);
    CHECK(!survives(bytes.substr(0, static_cast<std::size_t>(share * static_cast<double>(bytes.size())))));
  }
  std::mt19937 generator(9);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    std::string changed = bytes.substr(0, 60000);  // all that is not data, and some of it
    changed[std::uniform_int_distribution<std::size_t>(0, 12000)(generator)] =
        static_cast<char>(std::uniform_int_distribution<int>(0, 255)(generator));
    changed += bytes.substr(60000);
    refused += survives(changed) ? 0 : 1;
  }
  CHECK(refused > 30);
}

TEST_CASE("the program says what is wrong") {
  const Embedded gemma({.architecture = "gemma"}), embedded;
  const std::string bytes = llama::test::read(embedded.path);
  const auto run = [](const std::string& path) {
    return llama::test::run_process(LAZYLLM_GGML, {"--model", path, "--prompt", "Hello"});
  };
  const auto unknown = run(gemma.path);
  CHECK(unknown.status == 1);
  CHECK(unknown.err.find("the architecture is gemma; this engine knows llama, qwen2 and qwen3") != std::string::npos);
  const auto cut = run(embedded.folder.write("cut.gguf", bytes.substr(0, bytes.size() / 2)));
  CHECK(cut.status == 1);
  CHECK(cut.err.find("the file ends before the end of tensor") != std::string::npos);
  const auto absent = run("absent.gguf");
  CHECK(absent.status == 1);
  CHECK(absent.err.find("absent.gguf: this is no GGUF file") != std::string::npos);
  CHECK(llama::test::run_process(LAZYLLM_GGML, {}).status == 2);
}
