#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "examples/llama/checkpoint/model_config.hpp"
#include "examples/llama/model/weight_source.hpp"

namespace llama {

/// Views into one block of random numbers, each weight at a place of its own, so that a large model needs no more
/// memory than its packed weights. `T` is `float` or `Eigen::bfloat16`.
template <class T>
WeightSource random_weights(const ModelConfig& config) {
  const auto largest = static_cast<std::size_t>(config.hidden_size * std::max(config.vocab, config.intermediate_size));
  // So many are drawn and then repeated: a prime number, so that no two rows of a weight are alike.
  constexpr std::size_t drawn = (1 << 22) - 3;
  auto block = std::make_shared<std::vector<T>>(drawn + largest);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02F);
  std::generate_n(block->begin(), drawn, [&] { return static_cast<T>(normal(random)); });
  for (std::size_t i = drawn; i < block->size(); ++i) (*block)[i] = (*block)[i - drawn];
  return [block](const std::string& name, const std::vector<Index>& shape) {
    const DType dtype = std::is_same_v<T, float> ? DType::f32 : DType::bf16;
    const std::size_t place = std::hash<std::string>()(name) % drawn;
    return Tensor{dtype, shape, reinterpret_cast<const std::byte*>(block->data() + place)};
  };
}

}  // namespace llama
