#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "examples/llama/checkpoint/model_config.hpp"
#include "examples/llama/checkpoint/tensor.hpp"

namespace llama {

/// What a llama2.c file holds; `tensors` have Hugging Face names and are views into the file.
struct Llama2cModel {
  ModelConfig config;
  StoredTensors tensors;
};

/// Reads a llama2.c checkpoint of the original layout (version 0: seven int32, then f32 weights).
/// `place` names the file in messages. Throws `checkpoint_error` when a number of the header is out of range or the
/// file's size is not what the header needs.
/// Tokens 1 and 2 both end a text: llama2.c's own models separate texts by 1, Llama 2 ends them by 2.
Llama2cModel read_llama2c(std::span<const std::byte> file, std::string_view place);

}  // namespace llama
