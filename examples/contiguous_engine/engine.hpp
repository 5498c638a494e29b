#pragma once
// A tiny engine with its K/V in one array per layer, made lazy with LazyLLM: the marked part is all of the integration.
#include <Eigen/Dense>
#include <cmath>
#include <cstdint>
#include <lazyllm/lazyllm.hpp>
#include <span>
#include <utility>
#include <vector>

namespace contiguous {

using lazyllm::Index, lazyllm::cpu::as_matrix;
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Row = Eigen::RowVectorXf;

constexpr Index layer_count = 6, width = 64;
constexpr std::int32_t vocabulary = 200;
constexpr float scale = 0.125F;  // 1 / sqrt(width): one attention head, to be short

inline Matrix random(Index inputs, Index outputs, float gain = 1) {
  return Matrix::Random(inputs, outputs) * gain * std::sqrt(3 / static_cast<float>(inputs));
}

struct Weights {
  Matrix query = random(width, width, 3), key = random(width, width, 2), value = random(width, width);
  Matrix output = random(width, width), up = random(width, 2 * width), down = random(2 * width, width);
};
inline const std::vector<Weights> model(layer_count);
inline const Matrix embedding = random(vocabulary, width);

inline Row normalised(const Row& x) { return x.normalized() * std::sqrt(static_cast<float>(width)); }
inline Row logits(const Row& hidden) { return normalised(hidden) * embedding.transpose(); }
inline Row rotated(Row x, Index position) {
  for (Index i = 0; i < width; i += 2) {
    const float angle = static_cast<float>(position) * std::pow(10000.0F, -static_cast<float>(i) / width);
    x.segment<2>(i) *= Eigen::Rotation2Df(-angle).toRotationMatrix();
  }
  return x;
}

// [integration]
struct AttentionBlock {  // nothing is inherited: the library looks for these members
  const Weights* weights;
  Matrix* query;                  // [rows x width] of the layer that runs: one buffer for all layers
  Matrix key_cache, value_cache;  // [capacity x width], a row for each position

  // Norm, Q/K/V with RoPE at plan.positions(), K/V to the cache, attention over plan.keys(), projection, residual.
  void attend(lazyllm::cpu::Context&, const lazyllm::LayerPlan& plan, lazyllm::RowsView<float> hidden);
  Row probabilities(Index row, lazyllm::Positions visible) const;

  // All that the library needs to score tokens.
  lazyllm::QueryRows<float> queries(const lazyllm::LayerPlan&) const {
    return {query->data(), /*row_stride=*/width, /*head_stride=*/width, /*heads=*/1, /*head_dim=*/width, scale};
  }
  lazyllm::ContiguousKeys<float> key_view(const lazyllm::LayerPlan&, Index /*sequence*/) const {
    return {key_cache.data(), /*position_stride=*/width, /*head_stride=*/width, /*kv_heads=*/1};
  }
};

struct FeedForwardBlock {
  const Weights* weights;
  void feed_forward(lazyllm::cpu::Context&, lazyllm::RowsView<float> hidden);  // norm, MLP, residual: of any rows
};

struct Engine {
  Engine(lazyllm::AnyPolicy policy, Index capacity) : pruner(std::move(policy)) {
    const Matrix cache(capacity, width);
    for (const Weights& weights : model) {
      layers.emplace_back(AttentionBlock{&weights, &query, cache, cache}, FeedForwardBlock{&weights});
    }
  }
  Engine(const Engine&) = delete;

  Row run(std::span<const std::int32_t> tokens) {  // the prompt or one token; returns the logits of the last
    as_matrix(step.begin(context, sequence, pruner, std::ssize(tokens))) = embedding(tokens, Eigen::all);
    for (auto& layer : layers) layer.forward(context, step);
    return logits(as_matrix(step.end().rows));
  }

  Matrix query;
  std::vector<lazyllm::LazyDecoderLayer<AttentionBlock, FeedForwardBlock>> layers;
  lazyllm::TokenPruner<lazyllm::AnyPolicy> pruner;             // which tokens go on after each layer
  lazyllm::cpu::Sequence<float> sequence{layer_count, width};  // one request: how deep each token is, its Aux Cache
  lazyllm::Step<decltype(sequence), decltype(pruner)> step;    // the running batch
  lazyllm::cpu::Context context;
};
// [integration-end]

inline void AttentionBlock::attend(lazyllm::cpu::Context&, const lazyllm::LayerPlan& plan,
                                   lazyllm::RowsView<float> hidden) {
  auto h = as_matrix(hidden);
  query->resize(plan.rows(), width);
  for (Index r = 0; r < plan.rows(); ++r) {  // positions ascend: a row finds the K/V of the rows before it
    const Index position = plan.positions()[r];
    const Row x = normalised(h.row(r));
    query->row(r) = rotated(x * weights->query, position);
    key_cache.row(position) = rotated(x * weights->key, position);
    value_cache.row(position) = x * weights->value;
    const lazyllm::Positions visible = plan.keys().first(plan.key_limits()[r]);
    h.row(r) += probabilities(r, visible) * value_cache(visible, Eigen::all) * weights->output;
  }
}

inline Row AttentionBlock::probabilities(Index row, lazyllm::Positions visible) const {
  Row p = scale * query->row(row) * key_cache(visible, Eigen::all).transpose();
  p = (p.array() - p.maxCoeff()).exp();
  return p / p.sum();
}

inline void FeedForwardBlock::feed_forward(lazyllm::cpu::Context&, lazyllm::RowsView<float> hidden) {
  for (auto h : as_matrix(hidden).rowwise()) h += (normalised(h) * weights->up).cwiseMax(0) * weights->down;
}

}  // namespace contiguous
