#include "examples/llama/checkpoint/checkpoint.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <system_error>
#include <utility>

#include "examples/llama/checkpoint/error.hpp"
#include "examples/llama/checkpoint/json.hpp"
#include "examples/llama/checkpoint/llama2c.hpp"
#include "examples/llama/checkpoint/safetensors.hpp"
#include "examples/llama/files/input_file.hpp"

namespace llama {
namespace {

/// What follows "model.layers.N." in the name of a weight of layer N.
constexpr std::array<std::string_view, 9> layer_weights = {
    "input_layernorm.weight",  "self_attn.q_proj.weight", "self_attn.k_proj.weight",
    "self_attn.v_proj.weight", "self_attn.o_proj.weight", "post_attention_layernorm.weight",
    "mlp.gate_proj.weight",    "mlp.up_proj.weight",      "mlp.down_proj.weight"};
constexpr std::array<std::string_view, 3> layer_biases = {"self_attn.q_proj.bias", "self_attn.k_proj.bias",
                                                          "self_attn.v_proj.bias"};
constexpr std::array<std::string_view, 2> head_norms = {"self_attn.q_norm.weight", "self_attn.k_norm.weight"};

/// Whether a model with `config` has a weight of this name, or one that says nothing new: the frequencies of the rotary
/// positions, which older files hold. A classifier may be there in any case, see `has_own_classifier`.
bool belongs_to(const ModelConfig& config, std::string_view name) {
  if (name.ends_with(".rotary_emb.inv_freq")) return true;
  if (name == "model.embed_tokens.weight" || name == "model.norm.weight" || name == "lm_head.weight") return true;
  constexpr std::string_view prefix = "model.layers.";
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  Index layer = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (error != std::errc() || layer < 0 || layer >= config.layers) return false;
  const auto digits = static_cast<std::size_t>(end - name.data());
  if (std::to_string(layer).size() != digits || !name.substr(digits).starts_with('.')) return false;
  name.remove_prefix(digits + 1);
  const auto is_of = [&](const auto& names) { return std::ranges::find(names, name) != names.end(); };
  return is_of(layer_weights) || (config.qkv_bias && is_of(layer_biases)) || (config.qk_norm && is_of(head_norms));
}

void check_names(const ModelConfig& config, const StoredTensors& tensors, std::string_view place) {
  for (const auto& [name, tensor] : tensors) {
    if (belongs_to(config, name)) continue;
    reject(place,
           "tensor {} does not belong to the model that config.json describes: {}, {} layers, {} biases, {} norms of "
           "heads",
           shown(name), config.architecture, config.layers, config.qkv_bias ? "with" : "without",
           config.qk_norm ? "with" : "without");
  }
}

/// Whether the classifier is another one than the embedding table. Then it counts even where config.json says that the
/// two are tied, as in transformers. Bytes are compared: an equal table of another type may count as another.
bool has_own_classifier(const StoredTensors& tensors) {
  const auto table = tensors.find("model.embed_tokens.weight");
  const auto classifier = tensors.find("lm_head.weight");
  if (table == tensors.end() || classifier == tensors.end()) return false;
  const StoredTensor& left = table->second;
  const StoredTensor& right = classifier->second;
  return left.dtype != right.dtype || left.shape != right.shape || !std::ranges::equal(left.data, right.data);
}

DType to_dtype(std::string_view stored, std::string_view name, std::string_view place) {
  if (stored == "F32") return DType::f32;
  if (stored == "F16") return DType::f16;
  if (stored == "BF16") return DType::bf16;
  reject(place, "tensor \"{}\" has elements of type {}, supported: F32, F16, BF16", name, shown(stored));
}

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& path) : place_(path.string()) {
  std::error_code ignored;  // MappedFile explains what is wrong with the path
  if (std::filesystem::is_directory(path, ignored)) {
    open_directory(path);
    return;
  }
  const auto bytes = map(path);
  if (path.extension() != ".bin")
    reject(place_, "expected a Hugging Face directory or a llama2.c file that ends in .bin");
  auto model = read_llama2c(bytes, place_);
  config_ = std::move(model.config);
  tensors_ = std::move(model.tensors);
}

std::span<const std::byte> Checkpoint::map(const std::filesystem::path& path) {
  files_.push_back(std::make_shared<const MappedFile>(path));
  return files_.back()->bytes();
}

void Checkpoint::open_directory(const std::filesystem::path& directory) {
  const auto config_path = directory / "config.json";
  config_ = read_model_config(MappedFile(config_path).bytes(), config_path.string());
  const auto single = directory / "model.safetensors";
  const auto index = directory / "model.safetensors.index.json";
  if (may_be_there(single)) {
    tensors_ = read_safetensors(map(single), single.string());
    check_names(config_, tensors_, single.string());
  } else if (may_be_there(index)) {
    open_shards(directory, index);
  } else {
    reject(place_,
           "found neither model.safetensors nor model.safetensors.index.json (other formats, such as "
           "pytorch_model.bin, are not supported)");
  }
  if (config_.tied_embeddings && has_own_classifier(tensors_)) config_.tied_embeddings = false;
}

void Checkpoint::open_shards(const std::filesystem::path& directory, const std::filesystem::path& index_path) {
  const auto index = read_safetensors_index(MappedFile(index_path).bytes(), index_path.string());
  std::map<std::string, StoredTensors> shards;
  for (const auto& [name, file] : index) {
    auto shard = shards.find(file);
    if (shard == shards.end()) {
      const auto path = directory / file;
      shard = shards.emplace(file, read_safetensors(map(path), path.string())).first;
      check_names(config_, shard->second, path.string());
    }
    const auto found = shard->second.find(name);
    if (found == shard->second.end())
      reject(index_path.string(), "tensor {} should be in {}, but is not", shown(name), file);
    tensors_.insert(shard->second.extract(found));
  }
  for (const auto& [file, left] : shards) {
    for (const auto& [name, tensor] : left) {
      if (name.ends_with(".rotary_emb.inv_freq")) continue;
      reject(index_path.string(), "tensor {} is in {}, but not in the index", shown(name), file);
    }
  }
}

Tensor Checkpoint::tensor(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) reject(place_, "tensor \"{}\" is missing", name);
  const StoredTensor& stored = found->second;
  return {to_dtype(stored.dtype, name, place_), stored.shape, stored.data.data()};
}

Tensor Checkpoint::tensor(std::string_view name, std::span<const Index> shape) const {
  Tensor result = tensor(name);
  if (!std::equal(shape.begin(), shape.end(), result.shape.begin(), result.shape.end()))
    reject(place_, "tensor \"{}\" has shape {}, expected [{}]", name, shown(result.shape), fmt::join(shape, ","));
  return result;
}

}  // namespace llama
