#pragma once
// The contiguous engine in two stages: each process runs and holds K/V of some of the layers. Both make every call of
// every step, so both know all plans; rows go over the wire once, between the stages, and scores where tokens are
// ranked.
#include <lazyllm/lazyllm.hpp>
#include <lazyllm/mpi.hpp>
#include <span>
#include <utility>
#include <vector>

#include "../contiguous_engine/engine.hpp"

namespace pipeline {

using contiguous::Index, contiguous::Matrix, lazyllm::cpu::as_matrix;
using Rows = lazyllm::RowsView<float>;

// [integration]
struct Stage {
  Index first, last;     // the layers that run here
  lazyllm::Ranks ranks;  // rank 0 is the first stage
  Index bytes_sent = 0;  // rows only

  bool owns(Index layer) const { return first <= layer && layer < last; }
  void send(Rows hidden) {
    MPI_Send(hidden.data, static_cast<int>(hidden.rows * hidden.width), MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
    bytes_sent += hidden.rows * hidden.width * static_cast<Index>(sizeof(float));
  }
  void receive(Rows hidden) {
    MPI_Recv(hidden.data, static_cast<int>(hidden.rows * hidden.width), MPI_FLOAT, 0, 0, MPI_COMM_WORLD,
             MPI_STATUS_IGNORE);
  }
};

struct AttentionBlock {
  Stage* stage;
  Index layer;
  contiguous::AttentionBlock block;

  void attend(lazyllm::cpu::Context& context, const lazyllm::LayerPlan& plan, Rows hidden) {
    stage->ranks.set_share(stage->owns(layer) ? 1 : 0);  // who scores this layer, if anyone has to
    if (layer == stage->first && layer > 0) stage->receive(hidden);
    if (stage->owns(layer)) block.attend(context, plan, hidden);
  }
  auto queries(const lazyllm::LayerPlan& plan) const { return block.queries(plan); }
  auto key_view(const lazyllm::LayerPlan& plan, Index sequence) const { return block.key_view(plan, sequence); }
};

struct FeedForwardBlock {
  Stage* stage;
  Index layer;
  contiguous::FeedForwardBlock block;

  void feed_forward(lazyllm::cpu::Context& context, Rows hidden) {  // of the rows that go on
    if (!stage->owns(layer)) return;
    block.feed_forward(context, hidden);
    if (layer + 1 == stage->last && layer + 1 < contiguous::layer_count) stage->send(hidden);
  }
};
// [integration-end]

struct Engine {
  Engine(Index first, Index last, lazyllm::AnyPolicy policy, Index capacity)
      : stage{first, last, lazyllm::mpi_ranks(MPI_COMM_WORLD)}, pruner(std::move(policy), {{}, &stage.ranks}) {
    for (Index layer = 0; layer < contiguous::layer_count; ++layer) {
      const Matrix cache(stage.owns(layer) ? capacity : 0, contiguous::hidden_size);
      const contiguous::Weights* weights = &contiguous::model[layer];
      layers.emplace_back(AttentionBlock{&stage, layer, {weights, &query, cache, cache}},
                          FeedForwardBlock{&stage, layer, {weights}});
    }
  }
  Engine(const Engine&) = delete;

  std::int32_t run(std::span<const std::int32_t> tokens) {  // the prompt or one token; returns the likeliest next one
    as_matrix(step.begin(context, sequence, pruner, std::ssize(tokens))) = contiguous::embedding(tokens, Eigen::all);
    for (auto& layer : layers) layer.forward(context, step);
    std::int32_t next = 0;
    contiguous::logits(as_matrix(step.end().rows)).maxCoeff(&next);
    MPI_Bcast(&next, 1, MPI_INT32_T, 1, MPI_COMM_WORLD);  // the last stage knows it
    return next;
  }

  Stage stage;
  Matrix query;
  std::vector<lazyllm::LazyDecoderLayer<AttentionBlock, FeedForwardBlock>> layers;
  lazyllm::TokenPruner<lazyllm::AnyPolicy, lazyllm::ScoreOfRanks> pruner;
  lazyllm::cpu::Sequence<float> sequence{contiguous::layer_count, contiguous::hidden_size};
  lazyllm::Step<decltype(sequence), decltype(pruner)> step;
  lazyllm::cpu::Context context;
};

}  // namespace pipeline
