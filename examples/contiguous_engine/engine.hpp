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

constexpr Index layer_count = 6, hidden_size = 64;
constexpr std::int32_t vocabulary = 200;
constexpr float scale = 0.125F;  // 1 / sqrt(hidden_size): one attention head, to be short

inline Matrix random(Index inputs, Index outputs, float gain = 1) {
  return Matrix::Random(inputs, outputs) * gain * std::sqrt(3 / static_cast<float>(inputs));
}

struct Weights {
  Matrix query = random(hidden_size, hidden_size, 3), key = random(hidden_size, hidden_size, 2),
         value = random(hidden_size, hidden_size);
  Matrix output = random(hidden_size, hidden_size), up = random(hidden_size, 2 * hidden_size),
         down = random(2 * hidden_size, hidden_size);
};
inline const std::vector<Weights> model(layer_count);
inline const Matrix embedding = random(vocabulary, hidden_size);

inline Row normalised(const Row& x) { return x.normalized() * std::sqrt(static_cast<float>(hidden_size)); }
inline Row logits(const Row& hidden) { return normalised(hidden) * embedding.transpose(); }
inline Row rotated(Row x, Index position) {
  for (Index i = 0; i < hidden_size; i += 2) {
    const float angle = static_cast<float>(position) * std::pow(10000.0F, -static_cast<float>(i) / hidden_size);
    x.segment<2>(i) *= Eigen::Rotation2Df(-angle).toRotationMatrix();
  }
  return x;
}

// [integration]
struct AttentionBlock {  // nothing is inherited: the library looks for these members
  const Weights* weights;
  Matrix* query;                  // [rows x hidden_size] of the layer that runs: one buffer for all layers
  Matrix key_cache, value_cache;  // [capacity x hidden_size], a row for each position

  // Norm, Q/K/V with RoPE at plan.positions(), K/V to the cache, attention over plan.keys(), projection, residual.
  void attend(lazyllm::cpu::Context&, const lazyllm::LayerPlan& plan, lazyllm::RowsView<float> hidden);
  Row probabilities(Index row, lazyllm::Positions visible) const;

  // All that the library needs to score tokens.
  lazyllm::QueryRows<float> queries(const lazyllm::LayerPlan&) const {
    return {query->data(), /*row_stride=*/hidden_size, /*head_stride=*/hidden_size,
            /*heads=*/1,   /*head_dim=*/hidden_size,   scale};
  }
  lazyllm::ContiguousKeys<float> key_view(const lazyllm::LayerPlan&, Index /*sequence*/) const {
    return {key_cache.data(), /*position_stride=*/hidden_size, /*head_stride=*/hidden_size, /*kv_heads=*/1};
  }
};

struct FeedForwardBlock {
  const Weights* weights;
  void feed_forward(lazyllm::cpu::Context&, lazyllm::RowsView<float> hidden);  // norm, MLP, residual: of any rows
};

struct Engine {
  Engine(lazyllm::AnyPolicy policy, Index capacity) : pruner(std::move(policy)) {
    const Matrix cache(capacity, hidden_size);
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
  lazyllm::TokenPruner<lazyllm::AnyPolicy> pruner;  // which tokens go on after each layer
  lazyllm::cpu::Sequence<float> sequence{layer_count,
                                         hidden_size};       // one request: how deep each token is, its Aux Cache
  lazyllm::Step<decltype(sequence), decltype(pruner)> step;  // the running batch
  lazyllm::cpu::Context context;
};
// [integration-end]

inline void AttentionBlock::attend(lazyllm::cpu::Context&, const lazyllm::LayerPlan& plan,
                                   lazyllm::RowsView<float> hidden) {
  auto h = as_matrix(hidden);
  query->resize(plan.rows(), hidden_size);
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
