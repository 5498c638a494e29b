#pragma once
// A tiny engine on CUDA: plain kernels with a block for each row and a thread for each column. Those of the library are
// enqueued on the same stream; it waits for the stream only in layers that rank tokens.
#include <thrust/device_vector.h>
#include <lazyllm/cuda.cuh>
#include <random>
#include <utility>
#include <vector>

namespace on_cuda {

using lazyllm::Index, lazyllm::Position, lazyllm::RowsView;

constexpr int layer_count = 6, hidden_size = 64, vocabulary = 200;
constexpr float scale = 0.125F;  // 1 / sqrt(hidden_size): one attention head, to be short

inline std::vector<float> random(std::mt19937& generator, int count, float size) {
  std::normal_distribution<float> normal(0, size);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}
struct Weights {  // matrices [outputs x inputs]
  explicit Weights(std::mt19937& generator) {
    for (auto* matrix : {&query, &key}) *matrix = random(generator, hidden_size * hidden_size, 0.3F);
    for (auto* matrix : {&value, &output, &up, &down}) *matrix = random(generator, hidden_size * hidden_size, 0.12F);
  }
  thrust::device_vector<float> query, key, value, output, up, down;
};

template <class T>
T* pointer(thrust::device_vector<T>& vector) {
  return thrust::raw_pointer_cast(vector.data());
}
template <class T>
const T* pointer(const thrust::device_vector<T>& vector) {
  return thrust::raw_pointer_cast(vector.data());
}

__device__ inline float dot(const float* matrix, const float* x) {  // of this thread's row of the matrix
  float sum = 0;
  for (int i = 0; i < hidden_size; ++i) sum += matrix[threadIdx.x * hidden_size + i] * x[i];
  return sum;
}
__device__ inline void normalise(const float* row, float* x) {
  float squares = 0;
  for (int i = 0; i < hidden_size; ++i) squares += row[i] * row[i];
  x[threadIdx.x] = row[threadIdx.x] * rsqrtf(squares / hidden_size + 1e-5F);
  __syncthreads();
}
__device__ inline float rotated(const float* x, Position position) {
  const int even = threadIdx.x / 2 * 2;
  const float angle = static_cast<float>(position) * powf(10000.0F, -static_cast<float>(even) / hidden_size);
  return threadIdx.x == even ? x[even] * cosf(angle) - x[even + 1] * sinf(angle)
                             : x[even] * sinf(angle) + x[even + 1] * cosf(angle);
}

static __global__ void project_rows(const float* wq, const float* wk, const float* wv, const float* hidden,
                                    const Position* positions, float* queries, float* keys, float* values) {
  __shared__ float x[hidden_size], q[hidden_size], k[hidden_size];
  const Index position = positions[blockIdx.x];
  normalise(hidden + blockIdx.x * hidden_size, x);
  q[threadIdx.x] = dot(wq, x);
  k[threadIdx.x] = dot(wk, x);
  values[position * hidden_size + threadIdx.x] = dot(wv, x);
  __syncthreads();
  queries[blockIdx.x * hidden_size + threadIdx.x] = rotated(q, position);
  keys[position * hidden_size + threadIdx.x] = rotated(k, position);
}

static __global__ void attend_rows(const float* wo, const float* queries, const float* keys, const float* values,
                                   const Position* active, const Position* limits, float* hidden) {
  __shared__ float q[hidden_size], logits[hidden_size], mixed[hidden_size];
  q[threadIdx.x] = queries[blockIdx.x * hidden_size + threadIdx.x];
  float highest = -INFINITY, sum = 0, result = 0;
  for (int first = 0; first < limits[blockIdx.x]; first += hidden_size) {  // a key for each thread
    const int count = min(hidden_size, limits[blockIdx.x] - first);
    __syncthreads();
    if (threadIdx.x < count) {
      float logit = 0;
      for (int i = 0; i < hidden_size; ++i) logit += q[i] * keys[Index{active[first + threadIdx.x]} * hidden_size + i];
      logits[threadIdx.x] = logit * scale;
    }
    __syncthreads();
    float higher = highest;
    for (int i = 0; i < count; ++i) higher = fmaxf(higher, logits[i]);
    sum *= expf(highest - higher), result *= expf(highest - higher), highest = higher;
    for (int i = 0; i < count; ++i) {
      const float weight = expf(logits[i] - highest);
      sum += weight, result += weight * values[Index{active[first + i]} * hidden_size + threadIdx.x];
    }
  }
  mixed[threadIdx.x] = result / sum;
  __syncthreads();
  hidden[blockIdx.x * hidden_size + threadIdx.x] += dot(wo, mixed);
}

static __global__ void feed_forward_rows(const float* up, const float* down, float* hidden) {
  __shared__ float x[hidden_size], y[hidden_size];
  normalise(hidden + blockIdx.x * hidden_size, x);
  y[threadIdx.x] = fmaxf(dot(up, x), 0);
  __syncthreads();
  hidden[blockIdx.x * hidden_size + threadIdx.x] += dot(down, y);
}

struct Lists {  // of the layer that runs, on the device; one for all layers
  explicit Lists(Index capacity)
      : positions(capacity), keys(capacity), limits(capacity), query(capacity * hidden_size) {}
  thrust::device_vector<Position> positions, keys, limits;
  thrust::device_vector<float> query;
};

// [attention]
struct AttentionBlock {
  const Weights* weights;
  Lists* lists;
  thrust::device_vector<float> key_cache, value_cache;

  void attend(lazyllm::cuda::Context& context, const lazyllm::LayerPlan& plan, RowsView<float> hidden) {
    context.upload(plan.positions(), pointer(lists->positions));
    context.upload(plan.keys(), pointer(lists->keys));
    context.upload(plan.key_limits(), pointer(lists->limits));
    const auto blocks = static_cast<unsigned>(plan.rows());
    const cudaStream_t stream = context.stream();
    project_rows<<<blocks, hidden_size, 0, stream>>>(pointer(weights->query), pointer(weights->key),
                                                     pointer(weights->value), hidden.data, pointer(lists->positions),
                                                     pointer(lists->query), pointer(key_cache), pointer(value_cache));
    attend_rows<<<blocks, hidden_size, 0, stream>>>(pointer(weights->output), pointer(lists->query), pointer(key_cache),
                                                    pointer(value_cache), pointer(lists->keys), pointer(lists->limits),
                                                    hidden.data);
  }
  lazyllm::QueryRows<float> queries(const lazyllm::LayerPlan&) const {  // pointers to device memory
    return {pointer(lists->query), hidden_size, hidden_size, /*heads=*/1, hidden_size, scale};
  }
  lazyllm::ContiguousKeys<float> key_view(const lazyllm::LayerPlan&, Index /*sequence*/) const {
    return {pointer(key_cache), hidden_size, hidden_size, /*kv_heads=*/1};
  }
};
// [attention-end]

struct FeedForwardBlock {
  const Weights* weights;

  void feed_forward(lazyllm::cuda::Context& context, RowsView<float> hidden) {
    feed_forward_rows<<<static_cast<unsigned>(hidden.rows), hidden_size, 0, context.stream()>>>(
        pointer(weights->up), pointer(weights->down), hidden.data);
  }
};

struct Engine {
  Engine(cudaStream_t stream, lazyllm::AnyPolicy policy, Index capacity)
      : lists(capacity), pruner(std::move(policy)), context(stream, /*workspace=*/1 << 20) {
    const thrust::device_vector<float> cache(capacity * hidden_size);
    for (int layer = 0; layer < layer_count; ++layer) model.emplace_back(generator);
    for (const Weights& weights : model) {
      layers.emplace_back(AttentionBlock{&weights, &lists, cache, cache}, FeedForwardBlock{&weights});
    }
  }
  Engine(const Engine&) = delete;

  std::vector<float> run(std::span<const std::int32_t> tokens) {  // returns the hidden state of the last, on the host
    embed(context, tokens, step.begin(context, sequence, pruner, std::ssize(tokens)));
    for (auto& layer : layers) layer.forward(context, step);
    const RowsView<const float> rows = step.end().rows;
    std::vector<float> last(hidden_size);
    copy_to_host(context, rows, last.data());
    return last;
  }
  void embed(lazyllm::cuda::Context& ctx, std::span<const std::int32_t> tokens, RowsView<float> rows) const {
    std::vector<float> values;
    for (const std::int32_t token : tokens) {
      values.insert(values.end(), embedding.begin() + token * hidden_size,
                    embedding.begin() + (token + 1) * hidden_size);
    }
    copy_from_host(ctx, values.data(), rows);
  }

  std::mt19937 generator;
  std::vector<float> embedding = random(generator, vocabulary* hidden_size, 1);
  std::vector<Weights> model;
  Lists lists;
  std::vector<lazyllm::LazyDecoderLayer<AttentionBlock, FeedForwardBlock>> layers;
  lazyllm::TokenPruner<lazyllm::AnyPolicy> pruner;
  lazyllm::cuda::Context context;
  lazyllm::cuda::Sequence<float> sequence{layer_count, hidden_size};
  lazyllm::Step<decltype(sequence), decltype(pruner)> step;
};
}  // namespace on_cuda
