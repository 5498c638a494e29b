#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "examples/llama/checkpoint/tensor.hpp"

namespace llama {

/// Reads the header of a safetensors file; the tensors are views into `file`. `place` names the file in messages.
/// Throws `checkpoint_error` when the header is not what the format allows: over 100 MB or longer than the file, not a
/// JSON object, a name twice, offsets outside the file, tensors that overlap or leave bytes unused, a shape that
/// overflows or does not fit its bytes. Element types other than F32, F16 and BF16 are not an error here.
StoredTensors read_safetensors(std::span<const std::byte> file, std::string_view place);

/// Reads a model.safetensors.index.json: tensor name to the name of the file that holds it.
/// Throws `checkpoint_error` when a file name is not a plain name ending in .safetensors, so that nothing outside the
/// checkpoint's directory can be opened.
std::map<std::string, std::string> read_safetensors_index(std::span<const std::byte> json_text, std::string_view place);

}  // namespace llama
