#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/kernels/attention_shape.hpp"
#include "examples/llama/kernels/rotary_table.hpp"
#include "examples/llama/library.hpp"
#include "examples/llama/model/rank_group.hpp"
#include "examples/llama/model/shard.hpp"
#include "examples/llama/model/weight_source.hpp"
#include "examples/llama/token_ids.hpp"

namespace llama {

struct CpuDevice;

/// The heads of a model's attention layers.
inline AttentionShape attention_shape(const ModelConfig& config) {
  return {config.heads, config.kv_heads, config.head_dim, 1 / std::sqrt(static_cast<float>(config.head_dim))};
}

/// The rotary angles of a model, no positions yet.
inline RotaryTable rotary_table(const ModelConfig& config) {
  return {config.head_dim, config.rope_theta, config.rope_scaling, config.rope_interleaved};
}

/// Weights of a Llama-like model in the memory of `Device`, `CpuDevice` or `CudaDevice`. `T` is the type of weights,
/// K/V and hidden states: `float` or `Eigen::bfloat16` on the CPU, `float`, `__half` or `__nv_bfloat16` on a CUDA
/// device. Immutable after loading.
template <class T, class Device = CpuDevice>
class Model {
 public:
  using Context = typename Device::Context;
  using Execution = typename Device::Execution;
  using Vector = typename Device::Vector;
  using Linear = typename Device::template Linear<T>;

  struct Layer {
    Vector attention_norm;  // [hidden_size]
    Linear projection;      // keys of all KV heads, then values, then queries but in the last layer
    /// [heads * head_dim x hidden_size] of the last layer alone, where usually only the output rows have queries.
    std::optional<Linear> query;
    std::optional<Vector> query_norm, key_norm;  // [head_dim], of each head alone; where the model has `qk_norm`
    Linear output;                               // [hidden_size x heads * head_dim]
    Vector feed_forward_norm;
    Linear gate_up;  // [2 * intermediate_size x hidden_size]
    Linear down;     // [hidden_size x intermediate_size]
  };

  /// `execution` says what loads the weights: a number of threads on the CPU, a stream on a CUDA device, which must
  /// outlive the model. With a `group`, on the CPU only, this is the part of one of its ranks. Throws what `source`
  /// throws, `lazyllm::cuda_error` without device memory, and as `shard_of`.
  Model(const ModelConfig& config, const WeightSource& source, Execution execution,
        std::shared_ptr<RankGroup> group = {})
      : Model(config, source, Loader{execution},
              group ? shard_of(config, group->ranks().rank(), group->ranks().count()) : shard_of(config, 0, 1), group) {
  }

  /// Throws `checkpoint_error` if a weight is missing or has the wrong shape.
  Model(const Checkpoint& checkpoint, Execution execution)
      : Model(checkpoint.config(), weights_of(checkpoint), execution) {}

  /// Heads and feed-forward are those of this rank.
  const ModelConfig& config() const { return config_; }
  /// The ranks that the model is split over, or null.
  RankGroup* group() const { return group_.get(); }
  /// Of the query heads, how many are here.
  double head_share() const { return head_share_; }
  const Layer& layer(Index i) const { return layers_[static_cast<std::size_t>(i)]; }

  /// Throws `std::invalid_argument` if there is no token, or one outside the vocabulary.
  void check(Tokens tokens) const {
    if (tokens.empty()) fail("a step has 0 tokens, at least 1 is needed");
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < 0 || tokens[i] >= config().vocab) {
        fail("token ", tokens[i], " at place ", i, " of the step is out of range 0 to ", config().vocab - 1);
      }
    }
  }

  /// The embeddings of `tokens`, which have been checked, into `rows` `[tokens x hidden_size]`.
  void embed(Context& context, Tokens tokens, RowsView<T> rows) const { Device::embed(context, table_, tokens, rows); }

  /// Final norm and classifier: `hidden` `[rows x hidden_size]` to `logits` `[rows x vocab]`. `normed` is scratch,
  /// `[rows x hidden_size]`.
  void logits(Context& context, RowsView<const T> hidden, RowsView<T> normed, RowsView<float> logits) const {
    Device::rms_norm(context, hidden, norm_, static_cast<float>(config().norm_epsilon), normed);
    if constexpr (Device::has_ranks) {
      if (group_) return logits_of_ranks(context, normed, logits);
    }
    classifier_.apply(context, RowsView<const T>(normed), logits);
  }

 private:
  using Loader = typename Device::template Loader<T>;
  using Table = typename Device::template Table<T>;

  Model(const ModelConfig& whole, const WeightSource& all, Loader&& loader, const Shard& shard,
        std::shared_ptr<RankGroup> group)
      : Model(config_of(whole, shard), group ? weights_of(all, whole, shard) : all, loader, shard.vocab) {
    group_ = std::move(group);
    head_share_ = static_cast<double>(shard.heads.count) / static_cast<double>(whole.heads);
  }

  Model(ModelConfig config, const WeightSource& source, Loader& loader, const Part& vocab)
      : config_(std::move(config)),
        vocab_(vocab),
        table_(loader.table(source, "model.embed_tokens.weight", {config_.vocab, config_.hidden_size})),
        norm_(loader.vector(source("model.norm.weight", {config_.hidden_size}))),
        classifier_(config_.tied_embeddings
                        ? loader.tied(table_, vocab)
                        : loader.linear(std::array{source("lm_head.weight", {vocab.count, config_.hidden_size})}, {})) {
    for (Index layer = 0; layer < config_.layers; ++layer) layers_.push_back(load_layer(source, layer, loader));
    loader.finish();
  }

  /// Each rank has the logits of a part of the vocabulary; the others' are 0 in its sum.
  void logits_of_ranks(Context& context, RowsView<T> normed, RowsView<float> logits) const {
    const std::span<const float> sums = group_->sum(logits.rows * logits.width, [&](std::span<float> values) {
      typename Context::template Buffer<float> own;
      own.reserve(context, normed.rows, vocab_.count);
      classifier_.apply(context, RowsView<const T>(normed), own.rows());
      for (Index r = 0; r < normed.rows; ++r) {
        std::copy_n(own.rows().row(r), vocab_.count, values.data() + r * logits.width + vocab_.first);
      }
    });
    for (Index r = 0; r < logits.rows; ++r) std::copy_n(sums.data() + r * logits.width, logits.width, logits.row(r));
  }

  Layer load_layer(const WeightSource& source, Index layer, Loader& loader) const {
    const Index query_width = config_.heads * config_.head_dim;
    const Index kv_width = config_.kv_heads * config_.head_dim;
    const auto weight = [&](const std::string& rest, const std::vector<Index>& shape) {
      return source("model.layers." + std::to_string(layer) + "." + rest, shape);
    };
    struct Heads {
      std::string name;
      Index width;
    };
    const Heads keys{"self_attn.k_proj", kv_width}, values{"self_attn.v_proj", kv_width};
    const Heads queries{"self_attn.q_proj", query_width};
    const auto product = [&](const std::vector<Heads>& parts) {
      std::vector<Tensor> weights, biases;
      for (const Heads& part : parts) {
        weights.push_back(weight(part.name + ".weight", {part.width, config_.hidden_size}));
        if (config_.qkv_bias) biases.push_back(weight(part.name + ".bias", {part.width}));
      }
      return loader.linear(weights, biases);
    };
    const auto head_norm = [&](const std::string& name) {
      return config_.qk_norm ? std::optional<Vector>(loader.vector(weight(name, {config_.head_dim}))) : std::nullopt;
    };
    const bool last = layer + 1 == config_.layers;
    return {loader.vector(weight("input_layernorm.weight", {config_.hidden_size})),
            last ? product({keys, values}) : product({keys, values, queries}),
            last ? std::optional<Linear>(product({queries})) : std::nullopt,
            head_norm("self_attn.q_norm.weight"),
            head_norm("self_attn.k_norm.weight"),
            loader.linear(std::array{weight("self_attn.o_proj.weight", {config_.hidden_size, query_width})}, {}),
            loader.vector(weight("post_attention_layernorm.weight", {config_.hidden_size})),
            loader.linear(std::array{weight("mlp.gate_proj.weight", {config_.intermediate_size, config_.hidden_size}),
                                     weight("mlp.up_proj.weight", {config_.intermediate_size, config_.hidden_size})},
                          {}),
            loader.linear(std::array{weight("mlp.down_proj.weight", {config_.hidden_size, config_.intermediate_size})},
                          {})};
  }

  ModelConfig config_;
  Part vocab_;
  std::shared_ptr<RankGroup> group_;
  double head_share_ = 1;
  Table table_;
  Vector norm_;
  Linear classifier_;
  std::vector<Layer> layers_;
};

}  // namespace llama
