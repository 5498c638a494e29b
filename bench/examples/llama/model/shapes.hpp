#pragma once

#include <string_view>

#include "examples/llama/base.hpp"
#include "examples/llama/checkpoint/model_config.hpp"

namespace llama {

/// A model shape by the name that benchmarks use. Throws `std::invalid_argument` for a name that is not known.
inline ModelConfig shape_named(std::string_view name) {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab = 32000;
  config.context = 1 << 20;
  config.norm_epsilon = 1e-5;
  const auto set = [&](Index hidden_size, Index layers, Index heads, Index kv_heads, Index intermediate_size) {
    config.hidden_size = hidden_size;
    config.layers = layers;
    config.heads = heads;
    config.kv_heads = kv_heads;
    config.head_dim = hidden_size / heads;
    config.intermediate_size = intermediate_size;
  };
  if (name == "134m") {
    set(768, 12, 12, 12, 2048);
  } else if (name == "smollm2") {
    set(576, 30, 9, 3, 1536);
    config.vocab = 49152;
    config.rope_theta = 100000;
  } else if (name == "qwen2.5-0.5b") {
    set(896, 24, 14, 2, 4864);
    config.vocab = 151936;
    config.rope_theta = 1000000;
  } else if (name == "1.1b") {
    set(2048, 22, 32, 4, 5632);  // TinyLlama
  } else if (name == "llama-2-7b") {
    set(4096, 32, 32, 32, 11008);
  } else if (name == "llama-3-8b") {
    set(4096, 32, 32, 8, 14336);
    config.vocab = 128256;
    config.rope_theta = 500000;
  } else {
    fail("shape '", name, "' is not one of 134m, smollm2, qwen2.5-0.5b, 1.1b, llama-2-7b and llama-3-8b");
  }
  return config;
}

}  // namespace llama
