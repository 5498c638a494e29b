#include "examples/llama/model/model.hpp"

#include <fmt/format.h>

#include <array>
#include <string>

#include "lazyllm/error.hpp"

namespace lazyllm::llama {

namespace {

std::vector<float> norm_weights(const ModelConfig& config, const WeightSource& source, const std::string& name) {
  std::vector<float> weights(static_cast<std::size_t>(config.width));
  to_float(source(name, {config.width}), 0, weights);
  return weights;
}

template <class T>
typename Model<T>::Layer load_layer(const ModelConfig& config, const WeightSource& source, Index layer, int threads) {
  const Index query_width = config.heads * config.head_width;
  const Index kv_width = config.kv_heads * config.head_width;
  const auto name = [layer](const char* rest) { return fmt::format("model.layers.{}.{}", layer, rest); };
  const auto weight = [&](const char* rest, Index out, Index in) { return source(name(rest), {out, in}); };
  const auto bias = [&](std::initializer_list<const char*> names, Index out) {
    std::vector<Tensor> biases;
    for (const char* rest : names) {
      if (config.qkv_bias) biases.push_back(source(name(rest), {out}));
    }
    return biases;
  };
  const std::array query{weight("self_attn.q_proj.weight", query_width, config.width)};
  const std::array key_value{weight("self_attn.k_proj.weight", kv_width, config.width),
                             weight("self_attn.v_proj.weight", kv_width, config.width)};
  const std::array output{weight("self_attn.o_proj.weight", config.width, query_width)};
  const std::array gate_up{weight("mlp.gate_proj.weight", config.ffn_width, config.width),
                           weight("mlp.up_proj.weight", config.ffn_width, config.width)};
  const std::array down{weight("mlp.down_proj.weight", config.width, config.ffn_width)};
  return {norm_weights(config, source, name("input_layernorm.weight")),
          Linear<T>(query, bias({"self_attn.q_proj.bias"}, query_width), threads),
          Linear<T>(key_value, bias({"self_attn.k_proj.bias", "self_attn.v_proj.bias"}, kv_width), threads),
          Linear<T>(output, {}, threads),
          norm_weights(config, source, name("post_attention_layernorm.weight")),
          Linear<T>(gate_up, {}, threads),
          Linear<T>(down, {}, threads)};
}

template <class T>
Linear<T> load_classifier(const ModelConfig& config, const WeightSource& source, int threads) {
  const char* name = config.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
  const std::array weights{source(name, {config.vocab, config.width})};
  return Linear<T>(weights, {}, threads);
}

}  // namespace

template <class T>
Model<T>::Model(ModelConfig config, WeightSource source, int threads)
    : config_(std::move(config)),
      source_(std::move(source)),
      embedding_(source_("model.embed_tokens.weight", {config_.vocab, config_.width})),
      norm_(norm_weights(config_, source_, "model.norm.weight")),
      classifier_(load_classifier<T>(config_, source_, threads)),
      rotary_(config_.head_width, config_.rope_theta, config_.rope_scaling, config_.rope_interleaved) {
  for (Index layer = 0; layer < config_.layers; ++layer) {
    layers_.push_back(load_layer<T>(config_, source_, layer, threads));
  }
}

template <class T>
void Model<T>::check(std::span<const TokenId> tokens) const {
  if (tokens.empty()) detail::fail("a step has 0 tokens, at least 1 is needed");
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= config().vocab) {
      detail::fail("token ", tokens[i], " at place ", i, " of the step is out of range 0 to ", config().vocab - 1);
    }
  }
}

template <class T>
void Model<T>::logits(Rows<const T> hidden, Rows<T> normed, Rows<float> logits, int threads) const {
  rms_norm(hidden, norm_, static_cast<float>(config().norm_epsilon), normed, threads);
  classifier_.apply(Rows<const T>(normed), logits, threads);
}

template class Model<float>;
template class Model<Eigen::bfloat16>;

}  // namespace lazyllm::llama
