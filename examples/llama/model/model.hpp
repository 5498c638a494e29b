#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/kernels/linear.hpp"
#include "examples/llama/kernels/pointwise.hpp"
#include "examples/llama/model/kv_cache.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"
#include "lazyllm/core/rows.hpp"

namespace lazyllm::llama {

/// Where a model's weights come from: a weight by its Hugging Face name and its shape. The data must stay valid as long
/// as a copy of the source lives.
using WeightSource = std::function<Tensor(const std::string& name, const std::vector<Index>& shape)>;

/// Weights of a Llama-like model, packed for the GEMM library; only the embedding table stays in the mapped file. `T`,
/// of weights, K/V and hidden states, is `float` or `Eigen::bfloat16`. Immutable after loading.
template <class T>
class Model {
 public:
  struct Layer {
    std::vector<float> attention_norm;  // [width]
    Linear<T> query;                    // [heads * head_width x width]
    Linear<T> key_value;                // keys of all KV heads, then values
    Linear<T> output;                   // [width x heads * head_width]
    std::vector<float> feed_forward_norm;
    Linear<T> gate_up;  // [2 * ffn_width x width]
    Linear<T> down;     // [width x ffn_width]
  };

  /// Throws what `source` throws.
  Model(ModelConfig config, WeightSource source, int threads);

  /// Throws `checkpoint_error` if a weight is missing or has the wrong shape.
  Model(const Checkpoint& checkpoint, int threads)
      : Model(
            checkpoint.config(),
            [checkpoint](const std::string& name, const std::vector<Index>& shape) {
              return checkpoint.tensor(name, std::span<const Index>(shape));
            },
            threads) {}

  const ModelConfig& config() const { return config_; }
  const Layer& layer(Index i) const { return layers_[static_cast<std::size_t>(i)]; }
  const RotaryTable& rotary() const { return rotary_; }

  /// A K/V cache for one sequence of up to `capacity` tokens.
  KvCache<T> make_cache(Index capacity) const {
    return {config().layers, config().kv_heads, config().head_width, capacity};
  }

  /// Throws `lazyllm::invalid_argument` if there is no token, or one outside the vocabulary.
  void check(std::span<const TokenId> tokens) const;

  /// The embeddings of `tokens` into `rows` `[tokens x width]`.
  void embed(std::span<const TokenId> tokens, Rows<T> rows, int threads) const {
    llama::embed(embedding_, tokens, rows, threads);
  }

  /// Final norm and classifier: `hidden` `[rows x width]` to `logits` `[rows x vocab]`. `normed` is scratch, `[rows x
  /// width]`.
  void logits(Rows<const T> hidden, Rows<T> normed, Rows<float> logits, int threads) const;

 private:
  ModelConfig config_;
  WeightSource source_;  // keeps the embedding table
  Tensor embedding_;
  std::vector<Layer> layers_;
  std::vector<float> norm_;
  Linear<T> classifier_;
  RotaryTable rotary_;
};

extern template class Model<float>;
extern template class Model<Eigen::bfloat16>;

}  // namespace lazyllm::llama
