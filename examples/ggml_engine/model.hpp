#pragma once

#include <ggml-cpp.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ggml_engine {

using Index = std::int64_t;

/// The numbers of a model, with the limits within which they have been checked.
struct Shape {
  Index layers = 0, hidden_size = 0, heads = 0, kv_heads = 0, head_dim = 0, intermediate_size = 0, context = 0,
        vocabulary = 0;
  float norm_epsilon = 0, rope_base = 0, rope_scale = 1;
  int rope_mode = 0;     ///< of ggml: which elements of a head turn together
  bool qk_norm = false;  ///< each head of the queries and keys is normalised before it turns

  Index kv_width() const { return kv_heads * head_dim; }  ///< elements of K, or of V, of a token
};

/// The weights of a layer, of the types that the file has. Biases, `rope_factors` and the norms of the heads may be
/// null.
struct Layer {
  ggml_tensor *attention_norm, *query, *key, *value, *query_bias, *key_bias, *value_bias, *query_norm, *key_norm;
  ggml_tensor *rope_factors, *output;
  ggml_tensor *feed_forward_norm, *gate, *up, *down;
};

/// A GGUF file of the architecture `llama`, `qwen2` or `qwen3`, read by ggml into memory of its CPU backend.
class Model {
 public:
  /// Throws `std::runtime_error` for a file that cannot be read, is cut off, or has what this engine does not know.
  explicit Model(const std::string& path);

  const Shape& shape() const { return shape_; }
  const Layer& layer(Index layer) const { return layers_[static_cast<std::size_t>(layer)]; }
  ggml_tensor* embedding() const { return embedding_; }
  ggml_tensor* output_norm() const { return output_norm_; }
  ggml_tensor* classifier() const { return classifier_; }
  std::size_t bytes() const;  ///< of the weights in memory

 private:
  Shape shape_;
  std::vector<Layer> layers_;
  ggml_tensor *embedding_ = nullptr, *output_norm_ = nullptr, *classifier_ = nullptr;
  ggml_context_ptr tensors_;
  std::vector<ggml_backend_buffer_ptr> buffers_;
};

}  // namespace ggml_engine
