// A tiny engine with its K/V in one array per layer, made lazy with LazyLLM: the marked part is all the integration.
#include <Eigen/Dense>
#include <cmath>
#include <iostream>
#include <span>
#include <vector>

#include "lazyllm/lazyllm.hpp"

using Eigen::MatrixXf, Eigen::VectorXf, lazyllm::Index;

constexpr Index layer_count = 6, width = 64, vocabulary = 200, prompt_length = 300, decode_steps = 16;
constexpr float scale = 0.125F;  // 1 / sqrt(width): one attention head, to be short

MatrixXf random(Index outputs, Index inputs, float gain = 1) {
  return MatrixXf::Random(outputs, inputs) * gain * std::sqrt(3 / static_cast<float>(inputs));
}

struct Layer {
  MatrixXf query = random(width, width, 3), key = random(width, width, 2), value = random(width, width);
  MatrixXf output = random(width, width), up = random(2 * width, width), down = random(width, 2 * width);
};

const MatrixXf embedding = random(width, vocabulary);  // also turns hidden states into logits
const std::vector<Layer> model(layer_count);
// K/V of a layer before it has run, a column for each position: reading what was not computed would not go unnoticed.
const MatrixXf nothing = MatrixXf::Constant(width, prompt_length + decode_steps, NAN);

auto columns(lazyllm::RowsView<float> rows) { return MatrixXf::Map(rows.data, width, rows.rows); }
VectorXf normalised(const VectorXf& x) { return x.normalized() * std::sqrt(static_cast<float>(width)); }

// [integration]
struct AttentionBlock {  // nothing is inherited: the library looks for these members
  const Layer* layer;
  MatrixXf key_cache = nothing, value_cache = nothing, query = {};  // query: of the last call

  // Norm, Q/K/V with RoPE at plan.positions(), K/V to the cache, attention over plan.keys(), projection, residual.
  void attend(lazyllm::cpu::Context&, const lazyllm::LayerPlan& plan, lazyllm::RowsView<float> hidden);
  lazyllm::QueryRows<float> queries(const lazyllm::LayerPlan&) const {  // with the keys, all that scoring needs
    return {query.data(), /*row_stride=*/width, /*head_stride=*/width, /*heads=*/1, /*head_dim=*/width, scale};
  }
  lazyllm::ContiguousKeys<float> keys(const lazyllm::LayerPlan&, Index /*sequence*/) const {
    return {key_cache.data(), /*position_stride=*/width, /*head_stride=*/width, /*heads=*/1};
  }
};

struct FeedForwardBlock {
  const Layer* layer;
  void feed_forward(lazyllm::cpu::Context&, lazyllm::RowsView<float> hidden);  // norm, MLP, residual: of any rows
};

struct Engine {
  explicit Engine(const lazyllm::AnyPolicy& policy) : pruner(policy) {
    for (const Layer& layer : model) layers.emplace_back(AttentionBlock{&layer}, FeedForwardBlock{&layer});
  }
  VectorXf run(std::span<const Index> tokens) {  // new ones, the prompt or just one; returns the logits of the last
    columns(step.begin(context, sequence, pruner, std::ssize(tokens))) = embedding(Eigen::all, tokens);
    for (auto& layer : layers) layer.forward(context, step);
    return embedding.transpose() * normalised(columns(step.end()));
  }

  std::vector<lazyllm::LazyDecoderLayer<AttentionBlock, FeedForwardBlock>> layers;
  lazyllm::TokenPruner<lazyllm::AnyPolicy> pruner;             // which tokens go on after each layer
  lazyllm::cpu::Sequence<float> sequence{layer_count, width};  // one request: how deep each token is, its Aux Cache
  lazyllm::Step<decltype(sequence), decltype(pruner)> step;    // the running batch
  lazyllm::cpu::Context context;
};
// [integration-end]

VectorXf rotated(VectorXf x, Index position) {
  for (Index i = 0; i < width; i += 2) {
    const float angle = static_cast<float>(position) * std::pow(10000.0F, -static_cast<float>(i) / width);
    x.segment<2>(i) = Eigen::Rotation2Df(angle) * x.segment<2>(i);
  }
  return x;
}

void AttentionBlock::attend(lazyllm::cpu::Context&, const lazyllm::LayerPlan& plan, lazyllm::RowsView<float> hidden) {
  query.resize(width, plan.rows());
  for (Index r = 0; r < plan.rows(); ++r) {  // positions ascend: a row finds the K/V of the rows before it
    const Index position = plan.positions()[r];
    const VectorXf x = normalised(columns(hidden).col(r));
    query.col(r) = rotated(layer->query * x, position);
    key_cache.col(position) = rotated(layer->key * x, position);
    value_cache.col(position) = layer->value * x;
    const auto visible = plan.keys().first(plan.key_limits()[r]);
    VectorXf p = key_cache(Eigen::all, visible).transpose() * query.col(r) * scale;
    p = (p.array() - p.maxCoeff()).exp();
    columns(hidden).col(r) += layer->output * (value_cache(Eigen::all, visible) * p) / p.sum();
  }
}

void FeedForwardBlock::feed_forward(lazyllm::cpu::Context&, lazyllm::RowsView<float> hidden) {
  for (auto h : columns(hidden).colwise()) h += layer->down * (layer->up * normalised(h)).cwiseMax(0);
}

int main() {
  const lazyllm::KeepRatio half({{2, 0.5}, {4, 0.5}});  // half of the tokens after layer 2, half of these after 4
  Engine lazy(lazyllm::ProtectFirst{half, 4}), all{lazyllm::KeepAll()};
  std::vector<Index> text(prompt_length);
  for (Index i = 0; i < prompt_length; ++i) text[i] = i * i % vocabulary;
  bool correct = true;
  Eigen::ArrayXX<Index> counts = Eigen::ArrayXX<Index>::Zero(layer_count, 6);
  for (Index i = 0; i <= decode_steps; ++i) {
    const VectorXf logits = lazy.run(std::span(text).subspan(lazy.sequence.length()));
    correct = correct && logits.allFinite();
    logits.maxCoeff(&text.emplace_back());
    for (Index l = 0; l < layer_count; ++l) {
      const auto& [active, computed, revived, kept] = lazy.step.stats().layers[l];
      counts.row(l).segment<3>(i == 0 ? 0 : 3) += Eigen::Array<Index, 1, 3>(active, computed, revived);
    }
  }
  std::cout << "active, computed, revived in each layer: prompt, then all decode steps\n" << counts << "\n";

  // Every token has K/V in its lowest depths()[t] layers only, and was computed once in each of them.
  const auto depths = lazy.sequence.depths();
  const Index held = Eigen::VectorX<lazyllm::Depth>::Map(depths.data(), std::ssize(depths)).sum();
  correct = correct && counts.col(1).sum() + counts.col(4).sum() == held && counts.col(5).sum() > 0;
  for (Index l = 0; l < layer_count; ++l) {
    const auto computed = !lazy.layers[l].attention().key_cache.row(0).array().isNaN();
    for (Index t = 0; t < computed.size(); ++t) correct = correct && computed[t] == (l < depths[t]);
  }

  // Keeping everything is dense, bit for bit: the same blocks in a plain loop, with all tokens in one step.
  lazyllm::PlanBuilder plan;
  plan.start(0, std::ssize(depths));
  MatrixXf x = embedding(Eigen::all, std::span(text).first(depths.size()));
  const lazyllm::RowsView<float> hidden(x.data(), x.cols(), width);
  for (Index l = 0; l < layer_count; ++l) {
    AttentionBlock{&model[l]}.attend(all.context, plan.layer(l, layer_count), hidden);
    FeedForwardBlock{&model[l]}.feed_forward(all.context, hidden);
  }
  for (Index end = prompt_length, begin = 0; end <= x.cols(); begin = end++) {
    const VectorXf logits = all.run(std::span(text).subspan(begin, end - begin));
    correct = correct && logits == embedding.transpose() * normalised(x.col(end - 1));
  }
  std::cout << (correct ? "all checks hold\n" : "A CHECK FAILED\n");
  return correct ? 0 : 1;
}
