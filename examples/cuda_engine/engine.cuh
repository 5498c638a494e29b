#pragma once
// What makes the model of kernels.cuh lazy. The library's kernels are enqueued on the same stream; it waits for the
// stream only in layers that rank tokens.
#include <thrust/device_vector.h>
#include <thrust/extrema.h>
#include <lazyllm/cuda.cuh>
#include <random>
#include <utility>
#include <vector>

#include "kernels.cuh"

namespace on_cuda {

using lazyllm::Index, lazyllm::Position, lazyllm::RowsView;
using Floats = thrust::device_vector<float>;

auto pointer(auto& vector) { return thrust::raw_pointer_cast(vector.data()); }
inline Floats random(std::mt19937& generator, int matrices, float size) {
  std::normal_distribution<float> normal(0, size);
  std::vector<float> values(static_cast<std::size_t>(matrices * hidden_size * hidden_size));
  for (float& element : values) element = normal(generator);
  return values;
}

struct Buffers {  // of the layer that runs; one for all layers
  thrust::device_vector<Position> positions = thrust::device_vector<Position>(max_tokens), keys = positions,
                                  limits = positions;
  Floats queries = Floats(max_tokens * hidden_size);
};

// [attention]
struct AttentionBlock {
  const Floats* weights;
  Buffers* buffers;
  Floats key_cache = Floats(max_tokens * hidden_size), value_cache = key_cache;  // a row for each position

  void attend(lazyllm::cuda::Context& context, const lazyllm::LayerPlan& plan, RowsView<float> hidden) {
    auto& [positions, keys, limits, queries] = *buffers;
    context.upload(plan.positions(), pointer(positions));
    context.upload(plan.keys(), pointer(keys));
    context.upload(plan.key_limits(), pointer(limits));
    const auto rows = static_cast<unsigned>(plan.rows());
    project_rows<<<rows, hidden_size, 0, context.stream()>>>(
        pointer(*weights), hidden.data, pointer(positions), pointer(queries), pointer(key_cache), pointer(value_cache));
    attend_rows<<<rows, hidden_size, 0, context.stream()>>>(pointer(*weights), pointer(queries), pointer(key_cache),
                                                            pointer(value_cache), pointer(keys), pointer(limits),
                                                            hidden.data);
  }
  lazyllm::QueryRows<float> queries(const lazyllm::LayerPlan&) const {  // pointers to device memory
    return {pointer(buffers->queries), hidden_size, hidden_size, /*heads=*/1, hidden_size, scale};
  }
  lazyllm::ContiguousKeys<float> key_view(const lazyllm::LayerPlan&, Index /*sequence*/) const {
    return {pointer(key_cache), hidden_size, hidden_size, /*kv_heads=*/1};
  }
};
// [attention-end]

struct FeedForwardBlock {
  const Floats* weights;

  void feed_forward(lazyllm::cuda::Context& context, RowsView<float> hidden) {
    const auto rows = static_cast<unsigned>(hidden.rows);
    feed_forward_rows<<<rows, hidden_size, 0, context.stream()>>>(pointer(*weights), hidden.data);
  }
};

struct Engine {
  Engine(cudaStream_t stream, lazyllm::AnyPolicy policy) : pruner(std::move(policy)), context(stream) {
    for (int layer = 0; layer < layer_count; ++layer) model.push_back(random(generator, 6, 0.2F));
    for (const Floats& weights : model) {
      layers.emplace_back(AttentionBlock{&weights, &buffers}, FeedForwardBlock{&weights});
    }
  }
  Engine(const Engine&) = delete;

  std::int32_t run(std::span<const std::int32_t> tokens) {  // the prompt or one token; returns the next one
    embed(tokens, step.begin(context, sequence, pruner, std::ssize(tokens)));
    for (auto& layer : layers) layer.forward(context, step);
    const Floats& all = logits(step.end().rows);
    const auto best = thrust::max_element(thrust::cuda::par.on(context.stream()), all.begin(), all.end());
    return static_cast<std::int32_t>(best - all.begin());
  }
  void embed(std::span<const std::int32_t> tokens, RowsView<float> rows) {
    if (tokens.empty()) return;
    context.upload(tokens, pointer(buffers.keys));
    const auto blocks = static_cast<unsigned>(rows.rows);
    embed_rows<<<blocks, hidden_size, 0, context.stream()>>>(pointer(embedding), pointer(buffers.keys), rows.data);
  }
  const Floats& logits(RowsView<const float> row) {
    constexpr int blocks = vocabulary / hidden_size;
    score_tokens<<<blocks, hidden_size, 0, context.stream()>>>(pointer(embedding), row.data, pointer(token_logits));
    return token_logits;
  }

  std::mt19937 generator;
  Floats embedding = random(generator, vocabulary / hidden_size, 1), token_logits = Floats(vocabulary);
  std::vector<Floats> model;  // the matrices of each layer
  Buffers buffers;
  std::vector<lazyllm::LazyDecoderLayer<AttentionBlock, FeedForwardBlock>> layers;
  lazyllm::TokenPruner<lazyllm::AnyPolicy> pruner;
  lazyllm::cuda::Context context;
  lazyllm::cuda::Sequence<float> sequence{layer_count, hidden_size};
  lazyllm::Step<decltype(sequence), decltype(pruner)> step;
};

}  // namespace on_cuda
