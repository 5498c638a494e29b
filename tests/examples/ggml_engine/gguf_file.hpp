#pragma once

#include <ggml-cpp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/model/weight_source.hpp"

namespace ggml_engine::test {

using llama::Index;

/// What becomes a GGUF file.
struct GgufModel {
  std::string architecture = "llama";   ///< or qwen2 or qwen3
  ggml_type matrices = GGML_TYPE_F32;   ///< type of the layers' matrices
  std::set<std::string> left_out = {};  ///< keys and tensors
  Index wrong_width = 0;                ///< written in place of the right one, unless 0
};

/// Writes the GGUF file of a Hugging Face checkpoint with ggml's own writer. There is no tokenizer in it.
class GgufWriter {
 public:
  GgufWriter(const llama::ModelConfig& config, const llama::WeightSource& weights, GgufModel model)
      : config_(config),
        weights_(weights),
        model_(std::move(model)),
        file_(gguf_init_empty()),
        tensors_(ggml_init({.mem_size = 8192 * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true})) {
    gguf_set_val_str(file_.get(), "general.architecture", model_.architecture.c_str());
    gguf_set_val_str(file_.get(), "tokenizer.ggml.model", "none");
    number("block_count", config.layers);
    number("context_length", config.context);
    number("embedding_length", model_.wrong_width > 0 ? model_.wrong_width : config.hidden_size);
    number("feed_forward_length", config.intermediate_size);
    number("attention.head_count", config.heads);
    number("attention.head_count_kv", config.kv_heads);
    number("attention.key_length", config.head_dim);
    number("attention.value_length", config.head_dim);
    number("vocab_size", config.vocab);
    decimal("attention.layer_norm_rms_epsilon", config.norm_epsilon);
    decimal("rope.freq_base", config.rope_theta);

    const Index hidden_size = config.hidden_size, query_width = config.heads * config.head_dim;
    const Index kv_width = config.kv_heads * config.head_dim, inner = config.intermediate_size;
    add("token_embd.weight", "model.embed_tokens.weight", {config.vocab, hidden_size}, GGML_TYPE_F32);
    add("output_norm.weight", "model.norm.weight", {hidden_size}, GGML_TYPE_F32);
    if (!config.tied_embeddings) add("output.weight", "lm_head.weight", {config.vocab, hidden_size}, model_.matrices);
    for (Index l = 0; l < config.layers; ++l) {
      const std::string to = "blk." + std::to_string(l) + ".", from = "model.layers." + std::to_string(l) + ".";
      add(to + "attn_norm.weight", from + "input_layernorm.weight", {hidden_size}, GGML_TYPE_F32);
      add(to + "ffn_norm.weight", from + "post_attention_layernorm.weight", {hidden_size}, GGML_TYPE_F32);
      add(to + "attn_q.weight", from + "self_attn.q_proj.weight", {query_width, hidden_size}, model_.matrices,
          config.heads);
      add(to + "attn_k.weight", from + "self_attn.k_proj.weight", {kv_width, hidden_size}, model_.matrices,
          config.kv_heads);
      add(to + "attn_v.weight", from + "self_attn.v_proj.weight", {kv_width, hidden_size}, model_.matrices);
      add(to + "attn_output.weight", from + "self_attn.o_proj.weight", {hidden_size, query_width}, model_.matrices);
      add(to + "ffn_gate.weight", from + "mlp.gate_proj.weight", {inner, hidden_size}, model_.matrices);
      add(to + "ffn_up.weight", from + "mlp.up_proj.weight", {inner, hidden_size}, model_.matrices);
      add(to + "ffn_down.weight", from + "mlp.down_proj.weight", {hidden_size, inner}, model_.matrices);
      if (config.qk_norm) {
        add(to + "attn_q_norm.weight", from + "self_attn.q_norm.weight", {config.head_dim}, GGML_TYPE_F32);
        add(to + "attn_k_norm.weight", from + "self_attn.k_norm.weight", {config.head_dim}, GGML_TYPE_F32);
      }
      if (!config.qkv_bias) continue;
      add(to + "attn_q.bias", from + "self_attn.q_proj.bias", {query_width}, GGML_TYPE_F32, config.heads);
      add(to + "attn_k.bias", from + "self_attn.k_proj.bias", {kv_width}, GGML_TYPE_F32, config.kv_heads);
      add(to + "attn_v.bias", from + "self_attn.v_proj.bias", {kv_width}, GGML_TYPE_F32);
    }
  }

  gguf_context* file() { return file_.get(); }

  void write(const std::filesystem::path& path) const {
    if (!gguf_write_to_file(file_.get(), path.c_str(), /*only_meta=*/false)) {
      throw std::runtime_error("cannot write " + path.string());
    }
  }

 private:
  void number(const std::string& name, Index value) {
    if (model_.left_out.contains(name)) return;
    gguf_set_val_u32(file_.get(), (model_.architecture + "." + name).c_str(), static_cast<std::uint32_t>(value));
  }
  void decimal(const std::string& name, double value) {
    if (model_.left_out.contains(name)) return;
    gguf_set_val_f32(file_.get(), (model_.architecture + "." + name).c_str(), static_cast<float>(value));
  }

  /// Elements i and i + head_dim / 2 of a head turn together in a checkpoint; in GGUF's `llama`, 2i and 2i + 1 do. So
  /// its rows change places; `heads` is 0 for a weight without them.
  void add(const std::string& name, const std::string& from, const std::vector<Index>& shape, ggml_type type,
           Index heads = 0) {
    if (model_.left_out.contains(name)) return;
    const llama::Tensor weight = weights_(from, shape);
    std::vector<float> values(static_cast<std::size_t>(weight.elements()));
    to_float(weight, 0, values);
    const Index rows = shape[0], columns = shape.size() > 1 ? shape[1] : 1;
    if (heads > 0 && model_.architecture == "llama") {
      const std::vector<float> old = values;
      const Index half = rows / heads / 2;
      for (Index row = 0; row < rows; ++row) {
        const Index head = row / (2 * half), i = row % (2 * half) / 2, side = row % 2;
        std::copy_n(old.begin() + (head * 2 * half + side * half + i) * columns, columns,
                    values.begin() + row * columns);
      }
    }
    ggml_tensor* const tensor = shape.size() > 1 ? ggml_new_tensor_2d(tensors_.get(), type, columns, rows)
                                                 : ggml_new_tensor_1d(tensors_.get(), type, rows);
    ggml_set_name(tensor, name.c_str());
    const bool matrix = shape.size() > 1;
    tensor->data = data_.emplace_back(ggml_nbytes(tensor)).data();
    ggml_quantize_chunk(type, values.data(), tensor->data, 0, matrix ? rows : 1, matrix ? columns : rows, nullptr);
    gguf_add_tensor(file_.get(), tensor);
  }

  llama::ModelConfig config_;
  llama::WeightSource weights_;
  GgufModel model_;
  gguf_context_ptr file_;
  ggml_context_ptr tensors_;
  std::vector<std::vector<std::byte>> data_;
};

}  // namespace ggml_engine::test
