#pragma once

#include <string_view>

#include "examples/llama/checkpoint/model_config.hpp"
#include "lazyllm/error.hpp"

namespace lazyllm::llama {

/// A model shape by the name that benchmarks use. Throws `lazyllm::invalid_argument` for a name that is not known.
inline ModelConfig shape_named(std::string_view name) {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab = 32000;
  config.context = 1 << 20;
  config.norm_epsilon = 1e-5;
  const auto set = [&](Index width, Index layers, Index heads, Index kv_heads, Index intermediate_size) {
    config.width = width;
    config.layers = layers;
    config.heads = heads;
    config.kv_heads = kv_heads;
    config.head_dim = width / heads;
    config.intermediate_size = intermediate_size;
  };
  if (name == "134m") {
    set(768, 12, 12, 12, 2048);
  } else if (name == "1.1b") {
    set(2048, 22, 32, 4, 5632);  // TinyLlama
  } else if (name == "llama-2-7b") {
    set(4096, 32, 32, 32, 11008);
  } else if (name == "llama-3-8b") {
    set(4096, 32, 32, 8, 14336);
    config.vocab = 128256;
    config.rope_theta = 500000;
  } else {
    detail::fail("shape '", name, "' is not one of 134m, 1.1b, llama-2-7b and llama-3-8b");
  }
  return config;
}

}  // namespace lazyllm::llama
