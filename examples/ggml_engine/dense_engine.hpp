#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>
#include <vector>

#include "examples/ggml_engine/forward.hpp"

namespace ggml_engine {

/// Throws `std::runtime_error` unless so many new tokens fit behind those that have run.
inline void check_room(const Room& room, Index before, Index tokens) {
  if (tokens < 1 || tokens > room.context - before) {
    throw std::runtime_error(fmt::format("{} tokens after {} are out of range 1 to {}, what is left of the context",
                                         tokens, before, room.context - before));
  }
}

/// The engine without LazyLLM: all tokens run through all layers.
class DenseEngine {
 public:
  DenseEngine(const Model& model, const Room& room) : forward_(model, room) {}

  /// Runs the next tokens. Returns the logits after the last one.
  std::vector<float> run(std::span<const std::int32_t> tokens) {
    const Index before = std::ssize(positions_), rows = std::ssize(tokens), hidden_size = forward_.shape().hidden_size;
    check_room(forward_.room(), before, rows);
    hidden_.resize(static_cast<std::size_t>(rows * hidden_size));
    forward_.embed(tokens, hidden_.data());
    for (Index i = 0; i < rows; ++i) positions_.push_back(static_cast<std::int32_t>(before + i));
    std::vector<std::int32_t> limits(tokens.size());
    std::iota(limits.begin(), limits.end(), static_cast<std::int32_t>(before + 1));
    const auto all = std::span<const std::int32_t>(positions_);
    forward_.run({0, 2 * forward_.shape().layers}, {all.last(tokens.size()), all, limits}, hidden_.data());
    return forward_.logits(hidden_.data() + (rows - 1) * hidden_size, 1);
  }

  /// Forgets all tokens.
  void clear() { positions_.clear(); }
  Forward& forward() { return forward_; }

 private:
  Forward forward_;
  std::vector<std::int32_t> positions_;
  std::vector<float> hidden_;
};

}  // namespace ggml_engine
