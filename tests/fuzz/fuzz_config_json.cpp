#include <cstdint>
#include <span>

#include "examples/llama/checkpoint/error.hpp"
#include "examples/llama/checkpoint/model_config.hpp"
#include "examples/llama/checkpoint/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace llama;
  const auto text = std::as_bytes(std::span(data, size));
  try {
    const ModelConfig config = read_model_config(text, "fuzz");
    if (config.heads % config.kv_heads != 0 || config.head_dim % 2 != 0 || config.layers < 1) __builtin_trap();
  } catch (const checkpoint_error&) {
  }
  try {
    for (const auto& [tensor, file] : read_safetensors_index(text, "fuzz"))
      if (file.find('/') != file.npos) __builtin_trap();
  } catch (const checkpoint_error&) {
  }
  return 0;
}
