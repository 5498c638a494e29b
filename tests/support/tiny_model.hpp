#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "lazyllm/engine/contiguous_keys.hpp"
#include "lazyllm/engine/layer_plan.hpp"
#include "lazyllm/engine/queries.hpp"
#include "lazyllm/engine/rows.hpp"
#include "support/one_sequence.hpp"
#include "support/plain_scores.hpp"

/// A small Llama-like model in plain loops over single rows, so that a row's result cannot depend on what else is in
/// the batch. Functions that callers name are not inlined: compilers may fuse a multiplication with an addition in one
/// copy and not in another, and then a result would depend on the caller. The reference engine of the tests.
namespace lazyllm::test {

struct TinyShape {
  Index layers = 4;
  Index heads = 4;
  Index kv_heads = 2;
  Index head_dim = 8;
  Index vocab = 31;

  Index hidden_size() const { return heads * head_dim; }
  Index kv_width() const { return kv_heads * head_dim; }
};

using Vector = std::vector<float>;

/// Rounds each number to T.
template <class T>
std::vector<T> rounded(const Vector& values) {
  std::vector<T> result;
  for (const float value : values) result.push_back(static_cast<T>(value));
  return result;
}

class TinyModel {
 public:
  TinyModel(TinyShape shape, unsigned seed) : shape_(shape) {
    std::mt19937 random(seed);
    const auto matrix = [&](Index rows, Index columns, float gain) {
      std::normal_distribution<float> normal(0, gain / std::sqrt(static_cast<float>(columns)));
      Vector values(static_cast<std::size_t>(rows * columns));
      for (float& value : values) value = normal(random);
      return values;
    };
    const Index hidden_size = shape.hidden_size();
    embedding_ = matrix(shape.vocab, hidden_size, std::sqrt(static_cast<float>(hidden_size)));
    output_ = matrix(shape.vocab, hidden_size, 1);
    for (Index layer = 0; layer < shape.layers; ++layer) {
      // Queries and keys are scaled up so that attention is far from uniform.
      layers_.push_back({matrix(hidden_size, hidden_size, 3), matrix(shape.kv_width(), hidden_size, 2),
                         matrix(shape.kv_width(), hidden_size, 1), matrix(hidden_size, hidden_size, 1),
                         matrix(2 * hidden_size, hidden_size, 1), matrix(hidden_size, 2 * hidden_size, 1)});
    }
  }

  const TinyShape& shape() const { return shape_; }

  template <class T>
  void embed(Index token, T* row) const {
    for (Index i = 0; i < shape_.hidden_size(); ++i)
      row[i] = static_cast<T>(embedding_[at(token * shape_.hidden_size() + i)]);
  }

  struct Qkv {
    Vector query, key, value;
  };

  template <class T>
  [[gnu::noinline]] Qkv project(Index layer, Position position, const T* hidden) const {
    const Vector x = normalised(hidden);
    const Layer& w = layers_[at(layer)];
    Qkv result{times(w.query, x), times(w.key, x), times(w.value, x)};
    rotate(result.query, position);
    rotate(result.key, position);
    return result;
  }

  /// Adds the attention of `query` over the keys and values, given as pointers to `[kv_width]`, to `hidden`.
  template <class T, class K>
  [[gnu::noinline]] void attend(Index layer, const Vector& query, const std::vector<const K*>& keys,
                                const std::vector<const K*>& values, T* hidden) const {
    Vector mixed(at(shape_.hidden_size()), 0);
    for (Index head = 0; head < shape_.heads; ++head) {
      const Vector p = probabilities(query, keys, head);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        for (Index d = 0; d < shape_.head_dim; ++d) {
          mixed[at(head * shape_.head_dim + d)] += p[i] * static_cast<float>(values[i][kv_offset(head) + d]);
        }
      }
    }
    add(times(layers_[at(layer)].output, mixed), hidden);
  }

  /// `adapter` is what a request changes of the weights, 0 for nothing.
  template <class T>
  [[gnu::noinline]] void feed_forward(Index layer, T* hidden, float adapter = 0) const {
    Vector x = times(layers_[at(layer)].up, normalised(hidden));
    for (float& value : x) value = (1 + adapter) * value / (1 + std::exp(-value));
    add(times(layers_[at(layer)].down, x), hidden);
  }

  template <class T>
  [[gnu::noinline]] Vector logits(const T* hidden) const {
    return times(output_, normalised(hidden));
  }

  /// Attention probabilities of `query`: `[heads x keys]`.
  template <class K>
  [[gnu::noinline]] Vector probabilities(const Vector& query, const std::vector<const K*>& keys) const {
    Vector all;
    for (Index head = 0; head < shape_.heads; ++head) {
      const Vector p = probabilities(query, keys, head);
      all.insert(all.end(), p.begin(), p.end());
    }
    return all;
  }

 private:
  struct Layer {
    Vector query, key, value, output, up, down;
  };

  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  Index kv_offset(Index head) const { return head / (shape_.heads / shape_.kv_heads) * shape_.head_dim; }

  template <class K>
  [[gnu::noinline]] Vector probabilities(const Vector& query, const std::vector<const K*>& keys, Index head) const {
    Vector p;
    float highest = -std::numeric_limits<float>::infinity();
    for (const K* key : keys) {
      float dot = 0;
      for (Index d = 0; d < shape_.head_dim; ++d) {
        dot += query[at(head * shape_.head_dim + d)] * static_cast<float>(key[kv_offset(head) + d]);
      }
      p.push_back(dot / std::sqrt(static_cast<float>(shape_.head_dim)));
      highest = std::max(highest, p.back());
    }
    float sum = 0;
    for (float& value : p) sum += value = std::exp(value - highest);
    for (float& value : p) value /= sum;
    return p;
  }

  static Vector times(const Vector& matrix, const Vector& x) {
    Vector y(matrix.size() / x.size(), 0);
    const float* row = matrix.data();  // pointers, as vectors take most of the time of builds without optimisation
    for (float& sum : y) {
      sum = std::inner_product(x.data(), x.data() + x.size(), row, 0.0F);
      row += x.size();
    }
    return y;
  }

  template <class T>
  static void add(const Vector& x, T* row) {
    for (std::size_t i = 0; i < x.size(); ++i) row[i] = static_cast<T>(static_cast<float>(row[i]) + x[i]);
  }

  template <class T>
  Vector normalised(const T* row) const {
    Vector x(at(shape_.hidden_size()));
    float squares = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(row[i]);
      squares += x[i] * x[i];
    }
    const float scale = 1 / std::sqrt(squares / static_cast<float>(x.size()) + 1e-5F);
    for (float& value : x) value *= scale;
    return x;
  }

  void rotate(Vector& heads, Position position) const {
    const Index half = shape_.head_dim / 2;
    for (std::size_t head = 0; head < heads.size(); head += at(shape_.head_dim)) {
      for (Index i = 0; i < half; ++i) {
        const double angle = position * std::pow(100.0, -static_cast<double>(i) / static_cast<double>(half));
        const auto c = static_cast<float>(std::cos(angle));
        const auto s = static_cast<float>(std::sin(angle));
        float& a = heads[head + at(i)];
        float& b = heads[head + at(i + half)];
        const float rotated = a * c - b * s;
        b = a * s + b * c;
        a = rotated;
      }
    }
  }

  TinyShape shape_;
  Vector embedding_;
  Vector output_;
  std::vector<Layer> layers_;
};

/// K/V of one sequence in all layers, poisoned with NaN where nothing has been computed, and a count of the
/// computations.
template <class T>
struct TinyCache {
  TinyCache(const TinyShape& shape, Index capacity)
      : keys(at(shape.layers), std::vector<T>(at(capacity * shape.kv_width()), poison())),
        values(keys),
        computed(at(shape.layers), std::vector<int>(at(capacity), 0)),
        hidden_size(shape.kv_width()) {}

  /// Forgets the tokens from position `tokens` on, as an engine that frees their memory would.
  void truncate(Index tokens) {
    for (std::size_t layer = 0; layer < keys.size(); ++layer) {
      std::fill(keys[layer].begin() + tokens * hidden_size, keys[layer].end(), poison());
      std::fill(values[layer].begin() + tokens * hidden_size, values[layer].end(), poison());
      std::fill(computed[layer].begin() + tokens, computed[layer].end(), 0);
    }
  }

  /// Moves the tokens from position `last` on to `first`, keys as they are.
  void erase(Index first, Index last) {
    const Index tokens = std::ssize(computed.front());
    for (std::size_t layer = 0; layer < keys.size(); ++layer) {
      for (auto* rows : {&keys[layer], &values[layer]}) {
        std::copy(rows->begin() + last * hidden_size, rows->end(), rows->begin() + first * hidden_size);
      }
      std::copy(computed[layer].begin() + last, computed[layer].end(), computed[layer].begin() + first);
    }
    truncate(tokens - (last - first));
  }

  T* key(Index layer, Position position) { return keys[at(layer)].data() + position * hidden_size; }
  T* value(Index layer, Position position) { return values[at(layer)].data() + position * hidden_size; }

  std::vector<std::vector<T>> keys, values;
  std::vector<std::vector<int>> computed;
  Index hidden_size;
  float adapter = 0;  // of the request's feed-forwards

 private:
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  static T poison() { return static_cast<T>(std::numeric_limits<float>::quiet_NaN()); }
};

/// The caches of the sequences of one step, in the order of its entries.
template <class T>
using TinyBatch = std::vector<TinyCache<T>*>;

/// The attention block of one layer; also what a host is that exposes queries and keys.
template <class T>
struct TinyAttention {
  const TinyModel* model;
  Index layer;
  const TinyBatch<T>* batch;
  std::vector<T> query_rows = {};

  template <class Context>
  void attend(Context&, const LayerPlan& plan, RowsView<T> hidden) {
    query_rows.clear();
    for (Index s = 0; s < plan.sequences(); ++s) {
      TinyCache<T>& cache = *(*batch)[static_cast<std::size_t>(s)];
      const SequencePlan part = plan.sequence(s);
      const Index rows = std::ssize(part.positions);
      std::vector<Vector> queries;
      for (Index r = 0; r < rows; ++r) {
        const Position position = part.positions[static_cast<std::size_t>(r)];
        const TinyModel::Qkv qkv = model->project(layer, position, hidden.row(part.first_row + r));
        std::ranges::copy(rounded<T>(qkv.key), cache.key(layer, position));
        std::ranges::copy(rounded<T>(qkv.value), cache.value(layer, position));
        ++cache.computed[static_cast<std::size_t>(layer)][static_cast<std::size_t>(position)];
        queries.push_back(qkv.query);
        for (const float q : qkv.query) query_rows.push_back(static_cast<T>(q));
      }
      for (Index r = plan.outputs_only() ? rows - part.outputs : 0; r < rows; ++r) {
        std::vector<const T*> keys, values;
        for (Position k = 0; k < part.key_limits[static_cast<std::size_t>(r)]; ++k) {
          keys.push_back(cache.key(layer, part.keys[static_cast<std::size_t>(k)]));
          values.push_back(cache.value(layer, part.keys[static_cast<std::size_t>(k)]));
        }
        model->attend(layer, queries[static_cast<std::size_t>(r)], keys, values, hidden.row(part.first_row + r));
      }
    }
  }

  QueryRows<T> queries(const LayerPlan&) const {
    const TinyShape& shape = model->shape();
    return {query_rows.data(), shape.hidden_size(), shape.head_dim,
            shape.heads,       shape.head_dim,      1 / std::sqrt(static_cast<float>(shape.head_dim))};
  }

  ContiguousKeys<T> key_view(const LayerPlan&, Index s) const {
    const TinyShape& shape = model->shape();
    return {(*batch)[static_cast<std::size_t>(s)]->key(layer, 0), shape.kv_width(), shape.head_dim, shape.kv_heads};
  }
};

template <class T>
struct TinyFeedForward {
  const TinyModel* model;
  Index layer;

  template <class Context>
  void feed_forward(Context&, RowsView<T> hidden) {
    for (Index r = 0; r < hidden.rows; ++r) model->feed_forward(layer, hidden.row(r));
  }
};

/// A feed-forward with an adapter for each request.
template <class T>
struct TinyAdaptedFeedForward {
  const TinyModel* model;
  Index layer;
  const TinyBatch<T>* batch;

  template <class Context>
  void feed_forward(Context&, std::span<const Index> row_indptr, RowsView<T> hidden) {
    for (std::size_t s = 0; s < batch->size(); ++s) {
      for (Index r = row_indptr[s]; r < row_indptr[s + 1]; ++r) {
        model->feed_forward(layer, hidden.row(r), (*batch)[s]->adapter);
      }
    }
  }
};

/// A host whose block cannot be taken apart.
template <class T>
struct TinyFusedBlock : TinyAttention<T> {
  template <class Context>
  void attend(Context& context, const LayerPlan& plan, RowsView<T> hidden) {
    TinyAttention<T>::attend(context, plan, hidden);
    TinyFeedForward<T>{this->model, this->layer}.feed_forward(context, hidden);
  }
};

/// Where a block's queries and keys lie on the host.
template <class T>
const TinyAttention<T>& on_host(const TinyAttention<T>& block) {
  return block;
}

/// A host that computes its own scores, the plain ones whatever the backend of `Memory`, and exposes nothing else.
template <class T, class Memory, class Block = TinyAttention<T>>
class PlainlyScored {
 public:
  PlainlyScored(const TinyModel* model, Index layer, const TinyBatch<T>* batch) : block_{model, layer, batch} {}

  template <class Context>
  void attend(Context& context, const LayerPlan& plan, RowsView<T> hidden) {
    block_.attend(context, plan, hidden);
  }

  template <class Context>
  void token_scores(Context& context, const LayerPlan& plan, std::span<const ScoreWindow> windows) {
    for (const ScoreWindow& window : windows) {
      const SequencePlan part = plan.sequence(window.sequence);
      PlainScores plain;
      std::vector<float> values(window.scores.size());
      const auto first = static_cast<std::size_t>(window.first_row - part.first_row);
      score_one(plain, on_host(block_).queries(plan), window.first_row,
                part.key_limits.subspan(first, static_cast<std::size_t>(window.rows)),
                on_host(block_).key_view(plan, window.sequence), part.keys, window.over_rows, std::span<float>(values),
                window.over_heads);
      Memory::write(context, values, window.scores.data());
    }
  }

 private:
  Block block_;
};

}  // namespace lazyllm::test
