#pragma once
// The kernels of a tiny model, which know nothing of the library: a block for each row, a thread for each column.
#include <cstdint>

namespace on_cuda {

constexpr int layer_count = 6, hidden_size = 64, max_tokens = 512;
constexpr int vocabulary = 4 * hidden_size;
constexpr float scale = 0.125F;                             // 1 / sqrt(hidden_size): one attention head, to be short
enum Matrix : int { query, key, value, output, up, down };  // of a layer, [outputs x inputs], one after the other

__device__ inline float dot(const float* a, const float* b) {
  float sum = 0;
  for (int i = 0; i < hidden_size; ++i) sum += a[i] * b[i];
  return sum;
}
__device__ inline float product(const float* matrices, unsigned matrix, const float* x) {  // its element of this thread
  return dot(matrices + (matrix * hidden_size + threadIdx.x) * hidden_size, x);
}
__device__ inline void normalise(const float* row, float* x) {
  x[threadIdx.x] = row[threadIdx.x] * rsqrtf(dot(row, row) / hidden_size + 1e-5F);
  __syncthreads();
}
__device__ inline float rotated(const float* x, std::int32_t position) {
  const unsigned even = threadIdx.x / 2 * 2;
  const float angle = static_cast<float>(position) * powf(10000.0F, -static_cast<float>(even) / hidden_size);
  return threadIdx.x == even ? x[even] * cosf(angle) - x[even + 1] * sinf(angle)
                             : x[even] * sinf(angle) + x[even + 1] * cosf(angle);
}

static __global__ void embed_rows(const float* embedding, const std::int32_t* tokens, float* hidden) {
  hidden[blockIdx.x * hidden_size + threadIdx.x] = embedding[tokens[blockIdx.x] * hidden_size + threadIdx.x];
}

/// Q of each row; K and V to the place of its position.
static __global__ void project_rows(const float* weights, const float* hidden, const std::int32_t* positions,
                                    float* queries, float* keys, float* values) {
  __shared__ float x[hidden_size], q[hidden_size], k[hidden_size];
  const std::int32_t position = positions[blockIdx.x];
  normalise(hidden + blockIdx.x * hidden_size, x);
  q[threadIdx.x] = product(weights, query, x);
  k[threadIdx.x] = product(weights, key, x);
  values[position * hidden_size + threadIdx.x] = product(weights, value, x);
  __syncthreads();
  queries[blockIdx.x * hidden_size + threadIdx.x] = rotated(q, position);
  keys[position * hidden_size + threadIdx.x] = rotated(k, position);
}

/// Row r sees the first `limits[r]` of the positions `active`.
static __global__ void attend_rows(const float* weights, const float* queries, const float* keys, const float* values,
                                   const std::int32_t* active, const std::int32_t* limits, float* hidden) {
  __shared__ float logits[max_tokens], mixed[hidden_size];
  const int count = limits[blockIdx.x];
  for (unsigned i = threadIdx.x; i < count; i += hidden_size) {
    logits[i] = scale * dot(queries + blockIdx.x * hidden_size, keys + active[i] * hidden_size);
  }
  __syncthreads();
  float highest = -INFINITY, sum = 0, result = 0;
  for (int i = 0; i < count; ++i) highest = fmaxf(highest, logits[i]);
  for (int i = 0; i < count; ++i) {
    const float weight = expf(logits[i] - highest);
    sum += weight, result += weight * values[active[i] * hidden_size + threadIdx.x];
  }
  mixed[threadIdx.x] = result / sum;
  __syncthreads();
  hidden[blockIdx.x * hidden_size + threadIdx.x] += product(weights, output, mixed);
}

static __global__ void feed_forward_rows(const float* weights, float* hidden) {
  __shared__ float x[hidden_size], y[hidden_size];
  normalise(hidden + blockIdx.x * hidden_size, x);
  y[threadIdx.x] = fmaxf(product(weights, up, x), 0);
  __syncthreads();
  hidden[blockIdx.x * hidden_size + threadIdx.x] += product(weights, down, y);
}

static __global__ void score_tokens(const float* embedding, const float* row, float* logits) {
  logits[blockIdx.x * hidden_size + threadIdx.x] = product(embedding, blockIdx.x, row);
}

}  // namespace on_cuda
