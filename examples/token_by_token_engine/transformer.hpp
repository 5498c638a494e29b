#pragma once
// An engine that knows only forward(token, position), in the manner of llama2.c. One thing has changed for LazyLLM: the
// attention takes a list of keys.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <lazyllm/lazyllm.hpp>
#include <random>
#include <span>
#include <vector>

namespace token_by_token {

using lazyllm::Index, lazyllm::Position, lazyllm::Positions;
using Floats = std::vector<float>;

constexpr Index layer_count = 6, dim = 48, heads = 4, head_dim = dim / heads, hidden_dim = 96;
constexpr std::int32_t vocabulary = 150;
constexpr float scale = 0.28867513F;  // 1 / sqrt(head_dim)

inline Floats random(Index inputs, Index outputs, float gain = 1) {
  static std::mt19937 generator;
  std::normal_distribution<float> normal(0, gain / std::sqrt(static_cast<float>(inputs)));
  Floats values(inputs * outputs);
  for (float& value : values) value = normal(generator);
  return values;
}

struct Weights {
  Floats q = random(dim, dim, 3), k = random(dim, dim, 2), v = random(dim, dim), o = random(dim, dim);
  Floats up = random(dim, hidden_dim), down = random(hidden_dim, dim);
};
inline const Floats embedding = random(1, dim*vocabulary), classifier = random(dim, vocabulary);
inline const std::vector<Weights> weights(layer_count);

struct Transformer {
  explicit Transformer(Index seq_len) : key_cache(layer_count, Floats(seq_len * dim)), value_cache(key_cache) {}

  const Floats& forward(std::int32_t token, Position position) {
    all_keys.resize(position + 1, position);
    std::copy_n(embedding.begin() + token * dim, dim, x.begin());
    for (Index layer = 0; layer < layer_count; ++layer) {
      attention(layer, x.data(), position, all_keys);
      feed_forward(layer, x.data());
    }
    return head(x.data());
  }

  // Was: over all positions up to its own. Now: over `keys`, of which the last is its own.
  void attention(Index layer, float* x, Position position, Positions keys) {
    float* const k = &key_cache[layer][position * dim];
    rmsnorm(xb, x);
    matmul(q.data(), xb, weights[layer].q), matmul(k, xb, weights[layer].k);
    matmul(&value_cache[layer][position * dim], xb, weights[layer].v);
    rotate(q.data(), position), rotate(k, position);
    att.resize(heads * keys.size());
    std::ranges::fill(xb, 0.0F);
    for (Index h = 0; h < heads; ++h) {
      const std::span<float> p(att.data() + h * std::ssize(keys), keys.size());
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const float* const key = &key_cache[layer][keys[i] * dim + h * head_dim];
        p[i] = 0;
        for (Index d = 0; d < head_dim; ++d) p[i] += q[h * head_dim + d] * key[d] * scale;
      }
      softmax(p);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const float* const value = &value_cache[layer][keys[i] * dim + h * head_dim];
        for (Index d = 0; d < head_dim; ++d) xb[h * head_dim + d] += p[i] * value[d];
      }
    }
    matmul(xb2.data(), xb, weights[layer].o);
    for (Index d = 0; d < dim; ++d) x[d] += xb2[d];
  }

  void feed_forward(Index layer, float* x) {
    rmsnorm(xb, x);
    matmul(hb.data(), xb, weights[layer].up);
    for (float& value : hb) value /= 1 + std::exp(-value);
    matmul(xb2.data(), hb, weights[layer].down);
    for (Index d = 0; d < dim; ++d) x[d] += xb2[d];
  }

  const Floats& head(const float* x) {
    rmsnorm(xb, x);
    matmul(logits.data(), xb, classifier);
    return logits;
  }

  static void rmsnorm(Floats& out, const float* x) {
    float squares = 0;
    for (Index d = 0; d < dim; ++d) squares += x[d] * x[d];
    for (Index d = 0; d < dim; ++d) out[d] = x[d] / std::sqrt(squares / dim + 1e-5F);
  }
  static void matmul(float* out, const Floats& in, const Floats& matrix) {
    for (std::size_t row = 0; row < matrix.size() / in.size(); ++row) {
      out[row] = 0;
      for (std::size_t i = 0; i < in.size(); ++i) out[row] += matrix[row * in.size() + i] * in[i];
    }
  }
  static void rotate(float* vector, Position position) {
    for (Index i = 0; i < dim; i += 2) {
      const float angle =
          static_cast<float>(position) / std::pow(10000.0F, static_cast<float>(i % head_dim) / head_dim);
      const float a = vector[i], b = vector[i + 1], c = std::cos(angle), s = std::sin(angle);
      vector[i] = a * c - b * s, vector[i + 1] = a * s + b * c;
    }
  }
  static void softmax(std::span<float> values) {
    const float highest = *std::ranges::max_element(values);
    float sum = 0;
    for (float& value : values) sum += value = std::exp(value - highest);
    for (float& value : values) value /= sum;
  }

  std::vector<Floats> key_cache, value_cache;
  Floats x = Floats(dim), xb = x, xb2 = x, q = x, hb = Floats(hidden_dim), att, logits = Floats(vocabulary);
  std::vector<Position> all_keys;
};

}  // namespace token_by_token
