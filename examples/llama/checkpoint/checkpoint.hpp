#pragma once

#include <filesystem>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "examples/llama/checkpoint/mapped_file.hpp"
#include "examples/llama/checkpoint/model_config.hpp"
#include "examples/llama/checkpoint/tensor.hpp"

namespace llama {

/// A model on disk: its configuration and its weights, which stay memory-mapped and are never copied here.
/// Copies are cheap enough to pass around and share the mapping.
class Checkpoint {
 public:
  /// Opens a Hugging Face directory (config.json with model.safetensors, or with shards and
  /// model.safetensors.index.json), or a llama2.c `.bin` file. Reads headers only, and of a directory with tied
  /// embeddings and a classifier beside them both, up to where they differ.
  /// Throws `file_error` when anything is missing, damaged or unsupported, or there is a weight that does not belong to
  /// the model that the configuration describes: ignoring it would run another model than the one in the files.
  explicit Checkpoint(const std::filesystem::path& path);

  const ModelConfig& config() const { return config_; }

  /// Whether there is a weight of this name. Names are Hugging Face's for every kind of file.
  bool has(std::string_view name) const { return tensors_.contains(name); }

  /// The weight `name`, "model.layers.0.self_attn.q_proj.weight" for example; projections are `[outputs x inputs]`.
  /// Throws `checkpoint_error` when it is missing or its elements are not F32, F16 or BF16.
  Tensor tensor(std::string_view name) const;

  /// As above; also throws `checkpoint_error` when the shape is not `shape`.
  Tensor tensor(std::string_view name, std::span<const Index> shape) const;
  Tensor tensor(std::string_view name, std::initializer_list<Index> shape) const {
    return tensor(name, std::span<const Index>(shape.begin(), shape.size()));
  }

 private:
  void open_directory(const std::filesystem::path& directory);
  void open_shards(const std::filesystem::path& directory, const std::filesystem::path& index_path);
  std::span<const std::byte> map(const std::filesystem::path& path);

  std::string place_;
  ModelConfig config_;
  StoredTensors tensors_;
  std::vector<std::shared_ptr<const MappedFile>> files_;  // what `tensors_` point into
};

}  // namespace llama
