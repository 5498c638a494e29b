// A tiny engine that keeps its K/V in one array per layer, made lazy with LazyLLM. Read the marked part first: that is
// all the integration there is. The rest is what every engine has anyway, and the program's checks of itself.

#include <Eigen/Core>
#include <cmath>
#include <complex>
#include <cstdio>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

#include "lazyllm/lazyllm.hpp"

using lazyllm::Index;
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr Index layer_count = 6, heads = 4, kv_heads = 2, head_width = 16, vocabulary = 200;
constexpr Index width = heads * head_width, kv_width = kv_heads * head_width;
constexpr float scale = 0.25F;  // 1 / sqrt(head_width)
constexpr int decode_steps = 16;

struct Weights {
  Matrix query, key, value, output, up, down;
};

struct Model {
  Matrix embedding;  // also turns hidden states into logits
  std::vector<Weights> layers;
};

/// K/V `[capacity x kv_width]` of each layer. NaN marks what has not been computed, so that reading it cannot go
/// unnoticed.
struct KvCache {
  explicit KvCache(Index capacity)
      : keys(layer_count, Matrix::Constant(capacity, kv_width, std::numeric_limits<float>::quiet_NaN())),
        values(keys) {}

  bool holds(Index layer, Index position) const { return !std::isnan(keys[layer](position, 0)); }

  std::vector<Matrix> keys, values;
};

/// What a run leaves: one entry for the prompt, then one for each decode step.
struct Run {
  std::vector<Matrix> logits;
  std::vector<lazyllm::StepStats> stats;
  std::vector<lazyllm::Depth> depths;
};

auto matrix_of(lazyllm::Rows<float> rows) {
  return Eigen::Map<Matrix, 0, Eigen::OuterStride<>>(rows.data, rows.rows, rows.width, rows.stride);
}

Matrix normalised(const Matrix& x) {
  const Eigen::ArrayXf mean_squares = x.rowwise().squaredNorm() / static_cast<float>(x.cols());
  return x.array().colwise() * (mean_squares + 1e-5F).rsqrt();
}

void embed(const Model& model, std::span<const Index> tokens, lazyllm::Rows<float> hidden) {
  matrix_of(hidden) = model.embedding(tokens, Eigen::all);
}

Matrix logits_of(const Model& model, lazyllm::Rows<float> hidden) {
  return normalised(matrix_of(hidden)) * model.embedding.transpose();
}

Index likeliest(const Matrix& logits) {
  Index token = 0;
  logits.row(0).maxCoeff(&token);
  return token;
}

// [integration]
/// The attention block of one layer. Nothing is inherited: the library looks for these members.
struct AttentionBlock {
  const Weights* weights;
  KvCache* cache;
  Index layer;
  Matrix query = {};  // of the last call, after RoPE

  /// Norm, Q/K/V with RoPE at plan.positions(), K/V to the cache, attention over plan.keys(), projection, residual.
  void attend(lazyllm::cpu::Context&, const lazyllm::LayerPlan& plan, lazyllm::Rows<float> hidden);

  /// Where Q and K lie: from them the library scores the tokens.
  lazyllm::QueryRows<float> queries(const lazyllm::LayerPlan&) const {
    return {query.data(), width, head_width, heads, head_width, scale};
  }
  lazyllm::ContiguousKeys<float> keys(const lazyllm::LayerPlan&, Index /*sequence*/) const {
    return {cache->keys[layer].data(), kv_width, head_width, kv_heads};
  }
};

/// Norm, MLP and residual of one layer, for whatever rows are given.
struct FeedForwardBlock {
  const Weights* weights;
  void feed_forward(lazyllm::cpu::Context&, lazyllm::Rows<float> hidden);
};

/// How many tokens stay active after which layer; a plain type in place of std::function is inlined.
using Policy = std::function<lazyllm::Selection(const lazyllm::PrunePoint&)>;

/// Reads a prompt, then writes `decode_steps` tokens.
Run generate(const Model& model, KvCache& cache, const Policy& policy, std::vector<Index> tokens) {
  using Pruner = lazyllm::TokenPruner<Policy>;
  using Sequence = lazyllm::Sequence<lazyllm::AuxCache<lazyllm::cpu::DenseStorage<float>>>;
  using Step = lazyllm::Step<Sequence, Pruner>;

  std::vector<lazyllm::LazyDecoderLayer<AttentionBlock, FeedForwardBlock>> layers;
  for (Index l = 0; l < layer_count; ++l) {
    layers.emplace_back(AttentionBlock{&model.layers[l], &cache, l}, FeedForwardBlock{&model.layers[l]});
  }
  lazyllm::cpu::Context context;
  Pruner pruner(policy);
  Sequence sequence(layer_count, lazyllm::AuxCache(lazyllm::cpu::DenseStorage<float>(width)));
  Step step;
  Run run;
  for (int i = 0; i <= decode_steps; ++i) {  // the prompt is a step like any other
    const auto new_tokens = std::span<const Index>(tokens).subspan(sequence.length());
    const Step::Entry entry{&sequence, &pruner, std::ssize(new_tokens)};
    embed(model, new_tokens, step.begin(context, std::span(&entry, 1)));
    for (auto& layer : layers) layer.forward(context, step);
    run.logits.push_back(logits_of(model, step.end()));
    run.stats.push_back(step.stats());
    tokens.push_back(likeliest(run.logits.back()));
  }
  run.depths.assign(sequence.depths().begin(), sequence.depths().end());
  return run;
}
// [integration-end]

/// RoPE at the tokens' own positions, which pruning never changes.
Matrix rotated(Matrix x, lazyllm::Positions positions) {
  for (Index r = 0; r < x.rows(); ++r) {
    for (Index c = 0; c < x.cols(); c += 2) {
      const float exponent = static_cast<float>(c % head_width) / head_width;
      const float angle = static_cast<float>(positions[r]) * std::pow(10000.0F, -exponent);
      const std::complex<float> turned = std::complex(x(r, c), x(r, c + 1)) * std::polar(1.0F, angle);
      x(r, c) = turned.real();
      x(r, c + 1) = turned.imag();
    }
  }
  return x;
}

void AttentionBlock::attend(lazyllm::cpu::Context&, const lazyllm::LayerPlan& plan, lazyllm::Rows<float> hidden) {
  const Matrix x = normalised(matrix_of(hidden));
  query = rotated(x * weights->query, plan.positions());
  const Matrix key = rotated(x * weights->key, plan.positions());
  const Matrix value = x * weights->value;
  for (Index r = 0; r < plan.rows(); ++r) {
    const Index position = plan.positions()[r];
    if (cache->holds(layer, position)) throw std::logic_error("a token was computed twice in one layer");
    cache->keys[layer].row(position) = key.row(r);
    cache->values[layer].row(position) = value.row(r);
  }

  // The active keys alone are gathered: all others may be uninitialised. A real engine's kernel reads them in place.
  const Matrix active_keys = cache->keys[layer](plan.keys(), Eigen::all);
  const Matrix active_values = cache->values[layer](plan.keys(), Eigen::all);
  Matrix mixed(plan.rows(), width);
  for (Index head = 0; head < heads; ++head) {
    const Index kv_column = head / (heads / kv_heads) * head_width;
    Matrix p = query.middleCols(head * head_width, head_width) *
               active_keys.middleCols(kv_column, head_width).transpose() * scale;
    for (Index r = 0; r < plan.rows(); ++r) {
      const Index visible = plan.key_limits()[r];
      p.row(r).head(visible) = (p.row(r).head(visible).array() - p.row(r).head(visible).maxCoeff()).exp();
      p.row(r).tail(p.cols() - visible).setZero();
      p.row(r) /= p.row(r).sum();
    }
    mixed.middleCols(head * head_width, head_width) = p * active_values.middleCols(kv_column, head_width);
  }
  matrix_of(hidden) += mixed * weights->output;
}

void FeedForwardBlock::feed_forward(lazyllm::cpu::Context&, lazyllm::Rows<float> hidden) {
  const Matrix x = normalised(matrix_of(hidden)) * weights->up;
  const Matrix activated = x.array() / (1 + (-x.array()).exp());
  matrix_of(hidden) += activated * weights->down;
}

/// The engine without LazyLLM's layers: the same blocks in a plain loop.
Run generate_dense(const Model& model, std::vector<Index> tokens) {
  KvCache cache(std::ssize(tokens) + decode_steps);
  lazyllm::cpu::Context context;
  lazyllm::PlanBuffers plan;
  Run run;
  Index history = 0;
  for (int i = 0; i <= decode_steps; ++i) {
    const auto new_tokens = std::span<const Index>(tokens).subspan(history);
    const lazyllm::PlanBuffers::Extent extent{history, std::ssize(new_tokens)};
    plan.start({&extent, 1});
    Matrix rows(extent.new_tokens, width);
    lazyllm::Rows<float> hidden(rows.data(), rows.rows(), width);
    embed(model, new_tokens, hidden);
    for (Index l = 0; l < layer_count; ++l) {
      AttentionBlock{&model.layers[l], &cache, l}.attend(context, plan.layer(l, layer_count), hidden);
      if (l + 1 == layer_count) hidden = hidden.subrows(hidden.rows - 1, 1);  // the others are not needed any more
      FeedForwardBlock{&model.layers[l]}.feed_forward(context, hidden);
    }
    run.logits.push_back(logits_of(model, hidden));
    history = std::ssize(tokens);
    tokens.push_back(likeliest(run.logits.back()));
  }
  return run;
}

Model random_model(std::mt19937& random) {
  const auto matrix = [&](Index inputs, Index outputs, float gain) -> Matrix {
    std::normal_distribution<float> normal(0, gain / std::sqrt(static_cast<float>(inputs)));
    return Matrix::NullaryExpr(inputs, outputs, [&] { return normal(random); });
  };
  Model model{matrix(vocabulary, width, 1), {}};
  for (Index l = 0; l < layer_count; ++l) {  // large queries and keys make the attention far from uniform
    model.layers.push_back({matrix(width, width, 3), matrix(width, kv_width, 2), matrix(width, kv_width, 1),
                            matrix(width, width, 1), matrix(width, 2 * width, 1), matrix(2 * width, width, 1)});
  }
  return model;
}

void print(const char* what, const lazyllm::StepStats& stats) {
  std::printf("%s\nlayer  active computed revived\n", what);
  for (std::size_t l = 0; l < stats.layers.size(); ++l) {
    const auto& [active, computed, revived, kept] = stats.layers[l];
    std::printf("%5zu %7td %8td %7td\n", l, active, computed, revived);
  }
}

int main() {
  std::mt19937 random(1);
  const Model model = random_model(random);
  std::vector<Index> prompt(300);
  for (Index& token : prompt) token = std::uniform_int_distribution<Index>(0, vocabulary - 1)(random);
  const Index capacity = std::ssize(prompt) + decode_steps;

  bool correct = true;
  const auto check = [&](bool holds, const char* what) {
    if (!holds) std::fprintf(stderr, "FAILED: %s\n", what);
    correct = correct && holds;
  };

  const Run dense = generate_dense(model, prompt);
  KvCache cache_of_all(capacity);
  const Run all = generate(model, cache_of_all, lazyllm::KeepAll(), prompt);
  check(all.logits == dense.logits, "keeping every token gives the dense logits, bit for bit");

  KvCache cache(capacity);
  const lazyllm::KeepFraction half({{2, 0.5}, {4, 0.5}});  // half of the tokens after layer 2, half of these after 4
  const Run lazy = generate(model, cache, lazyllm::ProtectFirst{half, 4}, prompt);
  print("Prompt of 300 tokens", lazy.stats[0]);
  print("First decode step", lazy.stats[1]);
  Index revived = 0;
  for (const lazyllm::StepStats& stats : lazy.stats) revived += stats.revived();
  check(lazy.stats[0].computed() < layer_count * std::ssize(prompt), "the prompt takes less work than dense");
  check(revived > 0, "decoding revives pruned tokens");
  for (const Matrix& logits : lazy.logits) check(logits.allFinite(), "no K/V is read that was not computed");
  bool cached_as_deep = true;
  for (Index l = 0; l < layer_count; ++l) {
    for (Index t = 0; t < capacity; ++t) cached_as_deep = cached_as_deep && cache.holds(l, t) == (l < lazy.depths[t]);
  }
  check(cached_as_deep, "the cache holds K/V of exactly the layers that each token has run through");
  return correct ? 0 : 1;
}
