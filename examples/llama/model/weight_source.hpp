#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "examples/llama/checkpoint/checkpoint.hpp"

namespace llama {

/// Where a model's weights come from: a weight by its Hugging Face name and its shape. The data must stay valid as long
/// as a copy of the source lives.
using WeightSource = std::function<Tensor(const std::string& name, const std::vector<Index>& shape)>;

/// The weights of a checkpoint. They throw `checkpoint_error` if a weight is missing or has the wrong shape.
inline WeightSource weights_of(const Checkpoint& checkpoint) {
  return [checkpoint](const std::string& name, const std::vector<Index>& shape) {
    return checkpoint.tensor(name, std::span<const Index>(shape));
  };
}

}  // namespace llama
