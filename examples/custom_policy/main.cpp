// An engine with its own idea of which tokens matter: a policy that never drops punctuation, and scores of its own. Its
// block is fused (attention and feed-forward in one), as in many inference engines.
#include <Eigen/Dense>
#include <cctype>
#include <cmath>
#include <iostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lazyllm/lazyllm.hpp"

using Eigen::MatrixXf, Eigen::VectorX, Eigen::VectorXf, lazyllm::Index;

constexpr Index layer_count = 6, width = 64, vocabulary = 128, capacity = 512, decode_steps = 16;

/// A policy is any callable from a PrunePoint to a Selection. It is asked anew in every step, so it may read what
/// changes between steps: here a mask that grows with the text.
struct KeepPunctuation {
  const std::vector<std::uint8_t>* punctuation;

  lazyllm::Selection operator()(const lazyllm::PrunePoint& point) const {
    if (point.layers_run % 2 != 0) return {};  // keeps everything
    return {.kind = lazyllm::Selection::Kind::top_k,
            .count = lazyllm::keep_count(0.5, point.active_tokens),
            .protect_first = 4,
            .protect_mask = *punctuation};
  }
};

MatrixXf random(float size) { return MatrixXf::Random(width, width) * size; }
struct Layer {
  MatrixXf query = random(0.6F), key = random(0.4F), value = random(0.2F), output = random(0.2F);
  MatrixXf up = random(0.2F), down = random(0.2F);
};

const MatrixXf embedding = MatrixXf::Random(width, vocabulary);  // also turns hidden states into logits
const std::vector<Layer> model(layer_count);
// K/V of a layer before it has run, a column for each position: reading what was not computed would not go unnoticed.
const MatrixXf nothing = MatrixXf::Constant(width, capacity, NAN);

auto columns(lazyllm::RowsView<float> rows) { return MatrixXf::Map(rows.data, width, rows.rows); }
VectorXf normalised(const VectorXf& x) { return x.normalized() * std::sqrt(static_cast<float>(width)); }

struct FusedBlock {
  const Layer* layer;
  MatrixXf key_cache = nothing, value_cache = nothing;
  VectorXf importance = {};  // of the active tokens, when it was last wanted

  void attend(lazyllm::cpu::Context&, const lazyllm::LayerPlan& plan, lazyllm::RowsView<float> hidden) {
    for (Index r = 0; r < plan.rows(); ++r) {  // positions ascend: a row finds the K/V of the rows before it
      auto h = columns(hidden).col(r);
      const VectorXf x = normalised(h);
      const Index position = plan.positions()[r];
      key_cache.col(position) = layer->key * x;
      value_cache.col(position) = layer->value * x;
      const auto visible = plan.keys().first(plan.key_limits()[r]);
      const MatrixXf values = value_cache(Eigen::all, visible);
      VectorXf p = key_cache(Eigen::all, visible).transpose() * (layer->query * x) / 8;
      p += VectorX<lazyllm::Position>::Map(visible.data(), p.size()).cast<float>() / 32;  // ALiBi in place of RoPE
      p = (p.array() - p.maxCoeff()).exp();
      h += layer->output * (values * p) / p.sum();
      h += layer->down * (layer->up * normalised(h)).cwiseMax(0);
      // Not the paper's score: what a token adds to the last row depends on its value, too.
      if (plan.scores_wanted()) importance = p.cwiseProduct(values.colwise().norm().transpose());
    }
  }

  /// In place of `queries` and `keys`: the scores of `plan.keys()` as this engine sees them.
  void last_token_scores(lazyllm::cpu::Context&, const lazyllm::LayerPlan&, Index, std::span<float> scores) const {
    VectorXf::Map(scores.data(), std::ssize(scores)) = importance;
  }
};

struct Engine {
  explicit Engine(const lazyllm::AnyPolicy& policy) : pruner(policy) {
    for (const Layer& layer : model) layers.emplace_back(FusedBlock{&layer});
  }
  VectorXf run(std::string_view tokens) {  // new ones, the prompt or just one; returns the logits of the last
    columns(step.begin(context, sequence, pruner, std::ssize(tokens))) = embedding(Eigen::all, tokens);
    for (auto& layer : layers) layer.forward(context, step);
    return embedding.transpose() * normalised(columns(step.end()));
  }

  std::vector<lazyllm::LazyDecoderLayer<FusedBlock>> layers;
  lazyllm::TokenPruner<lazyllm::AnyPolicy> pruner;
  lazyllm::cpu::Sequence<float> sequence{layer_count, width};
  lazyllm::Step<decltype(sequence), decltype(pruner)> step;
  lazyllm::cpu::Context context;
};

int main() {
  std::string text;  // a character is a token
  while (text.size() < 300) text += "Call me Ishmael. Some years ago - never mind how long precisely - I sailed; ";
  const std::size_t prompt = text.size();
  std::vector<std::uint8_t> punctuation;
  Engine lazy(KeepPunctuation{&punctuation}), all([](const lazyllm::PrunePoint&) { return lazyllm::Selection{}; });

  bool correct = true;
  Eigen::ArrayXX<Index> counts = Eigen::ArrayXX<Index>::Zero(layer_count, 6);
  for (Index i = 0, next = 0; i <= decode_steps; ++i) {
    while (punctuation.size() < text.size()) punctuation.push_back(std::ispunct(text[punctuation.size()]) != 0);
    const float highest = lazy.run(std::string_view(text).substr(lazy.sequence.length())).maxCoeff(&next);
    text.push_back(static_cast<char>(next));
    correct = correct && std::isfinite(highest);
    for (Index l = 0; l < layer_count; ++l) {
      const auto& [active, computed, revived, kept] = lazy.step.stats().layers[l];
      counts.row(l).segment<3>(i == 0 ? 0 : 3) += Eigen::Array<Index, 1, 3>(active, computed, revived);
    }
  }
  std::cout << "active, computed, revived in each layer: prompt, then all decode steps\n" << counts << "\n";

  // Each token was computed at most once in each layer, and has K/V in exactly depths()[t] layers; scores were computed
  // only where they were wanted; punctuation ran through all layers.
  const auto depths = lazy.sequence.depths();
  const Index held = VectorX<lazyllm::Depth>::Map(depths.data(), std::ssize(depths)).sum();
  correct = correct && counts.col(1).sum() + counts.col(4).sum() == held && counts.col(5).sum() > 0;
  correct = correct && lazy.layers[0].attention().importance.size() == 0;
  for (Index t = 0; t < std::ssize(depths); ++t) {
    correct = correct && (punctuation[t] == 0 || depths[t] == layer_count);
    for (Index l = 0; l < layer_count; ++l) {
      correct = correct && std::isnan(lazy.layers[l].attention().key_cache(0, t)) == (l >= depths[t]);
    }
  }

  // Keeping everything is dense, bit for bit: the same blocks in a plain loop, with all tokens in one step.
  lazyllm::PlanBuilder plan;
  plan.start(0, lazy.sequence.length());
  MatrixXf x = embedding(Eigen::all, std::string_view(text).substr(0, depths.size()));
  for (Index l = 0; l < layer_count; ++l) {
    FusedBlock{&model[l]}.attend(all.context, plan.layer(l, layer_count), {x.data(), x.cols(), width});
  }
  for (Index end = prompt, begin = 0; end <= x.cols(); begin = end++) {
    const VectorXf logits = all.run(std::string_view(text).substr(begin, end - begin));
    correct = correct && logits == embedding.transpose() * normalised(x.col(end - 1));
  }
  std::cout << (correct ? "all checks hold\n" : "A CHECK FAILED\n");
  return correct ? 0 : 1;
}
