#include "examples/llama/checkpoint/checkpoint.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <system_error>
#include <utility>

#include "examples/llama/checkpoint/error.hpp"
#include "examples/llama/checkpoint/llama2c.hpp"
#include "examples/llama/checkpoint/safetensors.hpp"

namespace llama {
namespace {

DType to_dtype(std::string_view stored, std::string_view name, std::string_view place) {
  if (stored == "F32") return DType::f32;
  if (stored == "F16") return DType::f16;
  if (stored == "BF16") return DType::bf16;
  reject(place, "tensor \"{}\" has elements of type {}, supported: F32, F16, BF16", name, stored);
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
  std::error_code ignored;
  if (std::filesystem::exists(single, ignored))
    tensors_ = read_safetensors(map(single), single.string());
  else if (std::filesystem::exists(index, ignored))
    open_shards(directory, index);
  else
    reject(place_,
           "found neither model.safetensors nor model.safetensors.index.json (other formats, such as "
           "pytorch_model.bin, are not supported)");
}

void Checkpoint::open_shards(const std::filesystem::path& directory, const std::filesystem::path& index_path) {
  const auto index = read_safetensors_index(MappedFile(index_path).bytes(), index_path.string());
  std::map<std::string, StoredTensors> shards;
  for (const auto& [name, file] : index) {
    auto shard = shards.find(file);
    if (shard == shards.end()) {
      const auto path = directory / file;
      shard = shards.emplace(file, read_safetensors(map(path), path.string())).first;
    }
    const auto found = shard->second.find(name);
    if (found == shard->second.end())
      reject(index_path.string(), "tensor \"{}\" should be in {}, but is not", name, file);
    tensors_.insert(shard->second.extract(found));
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
    reject(place_, "tensor \"{}\" has shape [{}], expected [{}]", name, fmt::join(result.shape, ", "),
           fmt::join(shape, ", "));
  return result;
}

}  // namespace llama
