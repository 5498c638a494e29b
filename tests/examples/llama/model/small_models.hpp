#pragma once

#include <string>

#include "examples/llama/checkpoint/checkpoint.hpp"
#include "tests/support/source_folder.hpp"

namespace llama::test {

/// Some of the models with random weights of tests/reference.
constexpr const char* small_models[] = {"mha_4_layers", "gqa2_6_layers", "qwen2_5_layers", "qwen3_4_layers",
                                        "llama3_4_layers"};

/// The model `name` of tests/reference, one of `small_models` or another.
inline Checkpoint small_model(const std::string& name) {
  return Checkpoint(lazyllm::test::source_folder() / "tests/reference/fixtures/lazyllm/models" / name);
}

}  // namespace llama::test
