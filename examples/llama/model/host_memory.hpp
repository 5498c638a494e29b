#pragma once

#include <istream>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "examples/llama/checkpoint/model_config.hpp"
#include "examples/llama/model/placement.hpp"

/// \file
/// What takes most of the main memory is named where there is not enough. Whether a model's weights fit is known before
/// they are read: Linux promises more memory than there is, and kills a program that uses it.

namespace llama {

/// Numbers in the matrices of one layer.
inline double layer_weights(const ModelConfig& config) {
  const auto product = [](Index a, Index b) { return static_cast<double>(a) * static_cast<double>(b); };
  return 2 * product(config.hidden_size, (config.heads + config.kv_heads) * config.head_dim) +
         3 * product(config.hidden_size, config.intermediate_size);
}

/// What an error says: `what` needs so many bytes.
std::string not_enough_memory(std::string_view what, double bytes);

/// Bytes that the weights take in main memory where `placement` says, but for the small norms and biases; of a group
/// the share of one rank. The embedding table stays in its file.
double host_weight_bytes(const ModelConfig& config, const Placement& placement);

/// MemAvailable of `meminfo`, which has the form of /proc/meminfo, in bytes; none where it does not say.
std::optional<double> available_bytes(std::istream& meminfo);

/// Throws `std::runtime_error` that names both sizes, and what needs less, where `available` bytes are too few.
void check_weights_fit(const ModelConfig& config, const Placement& placement, std::optional<double> available);

/// What they are, for errors.
std::string weights_in_words(const Placement& placement);

/// Calls `load`, which reads the weights of a model to where `placement` says. Throws `std::runtime_error` that names
/// them and their size where memory ends.
template <class Load>
auto with_memory_for_weights(const ModelConfig& config, const Placement& placement, const Load& load) {
  try {
    return load();
  } catch (const std::bad_alloc&) {
    throw std::runtime_error(not_enough_memory(weights_in_words(placement), host_weight_bytes(config, placement)));
  }
}

}  // namespace llama
