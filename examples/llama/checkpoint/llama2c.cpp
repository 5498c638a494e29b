#include "examples/llama/checkpoint/llama2c.hpp"

#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "examples/llama/checkpoint/error.hpp"

namespace llama {
namespace {

static_assert(std::endian::native == std::endian::little, "llama2.c files are little-endian and are used in place");

constexpr std::size_t header_numbers = 7;
constexpr std::size_t header_bytes = header_numbers * sizeof(std::int32_t);

/// A run of the file: one tensor, or one for each layer.
struct Part {
  std::string_view name;  ///< Within "model.layers.N." when `stacked`; empty: not a weight, skipped.
  bool stacked = false;
  std::vector<Index> shape;
};

Index elements(const Part& part) {
  Index product = 1;
  for (const Index size : part.shape) product *= size;
  return product;
}

ModelConfig read_header(std::span<const std::byte> file, std::string_view place) {
  if (file.size() < header_bytes)
    reject(place, "the file has {} bytes, a llama2.c header has {}", file.size(), header_bytes);
  std::array<std::int32_t, header_numbers> numbers{};
  std::memcpy(numbers.data(), file.data(), header_bytes);
  constexpr std::int32_t newer_magic = 0x616b3432;
  if (numbers[0] == newer_magic)
    reject(place, "a llama2.c file of version {}, supported: version 0 (export.py --version 0)", numbers[1]);

  const auto within = [&](const char* name, Index value, Index least, Index most) {
    if (value < least || value > most)
      reject(place, "{} in the llama2.c header is {}, expected {} to {}", name, value, least, most);
    return value;
  };
  using Limits = ModelLimits;
  ModelConfig config;
  config.architecture = "llama2.c";
  config.hidden_size = within("dim", numbers[0], 1, Limits::hidden_size);
  config.intermediate_size = within("hidden_dim", numbers[1], 1, Limits::intermediate_size);
  config.layers = within("n_layers", numbers[2], 1, Limits::layers);
  config.heads = within("n_heads", numbers[3], 1, Limits::heads);
  config.kv_heads = within("n_kv_heads", numbers[4], 1, config.heads);
  config.vocab = within("|vocab_size|", std::abs(Index{numbers[5]}), 3, Limits::vocab);  // 1 and 2 are special tokens
  config.context = within("seq_len", numbers[6], 1, Limits::context);
  if (config.heads % config.kv_heads != 0)
    reject(place, "n_heads in the llama2.c header is {}, expected a multiple of n_kv_heads ({})", config.heads,
           config.kv_heads);
  if (config.hidden_size % (2 * config.heads) != 0)
    reject(place, "dim in the llama2.c header is {}, expected a multiple of 2 * n_heads ({})", config.hidden_size,
           2 * config.heads);
  config.head_dim = within("dim / n_heads", config.hidden_size / config.heads, 2, Limits::head_dim);
  config.norm_epsilon = 1e-5;
  config.rope_interleaved = true;
  config.tied_embeddings = numbers[5] > 0;
  config.bos_id = 1;
  config.eos_ids = {1, 2};
  return config;
}

/// The file's order.
std::vector<Part> layout(const ModelConfig& config) {
  const Index hidden_size = config.hidden_size;
  const Index intermediate_size = config.intermediate_size;
  const Index kv_width = config.kv_heads * config.head_dim;
  std::vector<Part> parts = {
      {"model.embed_tokens.weight", false, {config.vocab, hidden_size}},
      {"input_layernorm.weight", true, {hidden_size}},
      {"self_attn.q_proj.weight", true, {hidden_size, hidden_size}},
      {"self_attn.k_proj.weight", true, {kv_width, hidden_size}},
      {"self_attn.v_proj.weight", true, {kv_width, hidden_size}},
      {"self_attn.o_proj.weight", true, {hidden_size, hidden_size}},
      {"post_attention_layernorm.weight", true, {hidden_size}},
      {"mlp.gate_proj.weight", true, {intermediate_size, hidden_size}},
      {"mlp.down_proj.weight", true, {hidden_size, intermediate_size}},
      {"mlp.up_proj.weight", true, {intermediate_size, hidden_size}},
      {"model.norm.weight", false, {hidden_size}},
      {"", false, {2, config.context, config.head_dim / 2}},  // tables of cosines and sines
  };
  if (!config.tied_embeddings) parts.push_back({"lm_head.weight", false, {config.vocab, hidden_size}});
  return parts;
}

}  // namespace

Llama2cModel read_llama2c(std::span<const std::byte> file, std::string_view place) {
  Llama2cModel model{.config = read_header(file, place), .tensors = {}};
  const ModelConfig& config = model.config;
  const std::vector<Part> parts = layout(config);
  std::size_t needed = header_bytes;
  for (const Part& part : parts)
    needed += static_cast<std::size_t>(elements(part) * (part.stacked ? config.layers : 1)) * sizeof(float);
  if (file.size() != needed)
    reject(place, "the file has {} bytes, but its llama2.c header (dim {}, {} layers, vocabulary {}) needs {}{}",
           file.size(), config.hidden_size, config.layers, config.vocab, needed,
           file.size() < needed ? " (is the file truncated?)" : "");

  std::size_t at = header_bytes;
  const auto take = [&](const Part& part, std::string name) {
    const std::size_t bytes = static_cast<std::size_t>(elements(part)) * sizeof(float);
    if (!name.empty()) model.tensors.emplace(std::move(name), StoredTensor{"F32", part.shape, file.subspan(at, bytes)});
    at += bytes;
  };
  for (const Part& part : parts) {
    if (!part.stacked) {
      take(part, std::string(part.name));
      continue;
    }
    for (Index layer = 0; layer < config.layers; ++layer)
      take(part, fmt::format("model.layers.{}.{}", layer, part.name));
  }
  return model;
}

}  // namespace llama
