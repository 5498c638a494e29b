#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "examples/llama/base.hpp"

namespace llama {

/// Rotary angles are used as they are.
struct NoRopeScaling {
  bool operator==(const NoRopeScaling&) const = default;
};

/// All rotary frequencies are divided by `factor` (>= 1).
struct LinearRopeScaling {
  double factor = 1;
  bool operator==(const LinearRopeScaling&) const = default;
};

/// Llama 3.1: frequencies with a wavelength above `original_context / low_freq_factor` are divided by `factor`, those
/// below `original_context / high_freq_factor` stay, and those between are blended. `low_freq_factor` is the smaller.
struct Llama3RopeScaling {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  Index original_max_position_embeddings = 8192;
  bool operator==(const Llama3RopeScaling&) const = default;
};

using RopeScaling = std::variant<NoRopeScaling, LinearRopeScaling, Llama3RopeScaling>;

/// Largest sizes that are accepted. Any product of three of them fits an `Index`.
struct ModelLimits {
  static constexpr Index vocab = Index{1} << 24;
  static constexpr Index hidden_size = Index{1} << 17;
  static constexpr Index layers = 1000;
  static constexpr Index heads = 4096;
  static constexpr Index head_dim = 4096;
  static constexpr Index intermediate_size = Index{1} << 20;
  static constexpr Index context = Index{1} << 30;
};

/// Shape and constants of a Llama-like model. Every reader below returns it checked: sizes are within `ModelLimits`,
/// `heads` is a multiple of `kv_heads`, and `head_dim` is even.
struct ModelConfig {
  /// "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM" or "llama2.c".
  std::string architecture;
  Index vocab = 0;
  Index hidden_size = 0;  ///< Width of the hidden rows.
  Index layers = 0;
  Index heads = 0;
  Index kv_heads = 0;
  Index head_dim = 0;  ///< Not always hidden_size / heads.
  Index intermediate_size = 0;
  Index context = 0;  ///< Most positions in one sequence.
  double norm_epsilon = 1e-6;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool rope_interleaved = false;  ///< true: rotate elements (2i, 2i+1) as llama2.c; false: (i, i + head_dim / 2).
  bool tied_embeddings = false;   ///< true: the classifier is the embedding table.
  bool qkv_bias = false;          ///< Queries, keys and values have biases, as in Qwen2.
  bool qk_norm = false;  ///< Each head of the queries and keys is normalised before it is rotated, as in Qwen3.
  std::optional<Index> sliding_window;  ///< Keys that a token sees, itself included; empty: all.
  std::optional<std::int32_t> bos_id;   ///< Token that starts a text.
  std::vector<std::int32_t> eos_ids;    ///< Any of these ends a text.
};

/// Reads a Hugging Face config.json, of transformers 4 (`rope_theta`, `rope_scaling`) or 5 (`rope_parameters`).
/// `place` is the file's name for messages. Throws `checkpoint_error` naming the field, its value and what is
/// supported or allowed.
ModelConfig read_model_config(std::span<const std::byte> json_text, std::string_view place);

/// Throws `std::invalid_argument` when a sequence of `tokens` is longer than the model's context, or long enough
/// that its sliding window, which the host does not implement, would change the result.
void check_length(const ModelConfig& config, Index tokens);

}  // namespace llama
