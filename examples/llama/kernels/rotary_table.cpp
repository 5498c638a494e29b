#include "examples/llama/kernels/rotary_table.hpp"

#include <cmath>
#include <numbers>
#include <variant>

namespace llama {
namespace {

double scaled(double frequency, const NoRopeScaling&) { return frequency; }
double scaled(double frequency, const LinearRopeScaling& scaling) { return frequency / scaling.factor; }
double scaled(double frequency, const Llama3RopeScaling& scaling) {
  const double turns =
      static_cast<double>(scaling.original_max_position_embeddings) * frequency / (2 * std::numbers::pi);
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  if (turns > scaling.high_freq_factor) return frequency;
  const double kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - kept) * frequency / scaling.factor + kept * frequency;
}

}  // namespace

RotaryTable::RotaryTable(Index head_dim, double theta, const RopeScaling& scaling, bool interleaved)
    : interleaved_(interleaved) {
  if (head_dim < 2 || head_dim % 2 != 0)
    fail("RotaryTable: head_dim ", head_dim, " is out of range, even and at least 2");
  for (Index i = 0; i < head_dim; i += 2) {
    const double frequency = std::pow(theta, -static_cast<double>(i) / static_cast<double>(head_dim));
    frequencies_.push_back(std::visit([&](const auto& kind) { return scaled(frequency, kind); }, scaling));
  }
}

void RotaryTable::reserve(Index positions) {
  if (positions <= positions_) return;
  const Index half = head_dim() / 2;
  angles_.resize(static_cast<std::size_t>(positions * head_dim()));
  for (Index position = positions_; position < positions; ++position) {
    float* const row = angles_.data() + position * head_dim();
    for (Index i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * frequencies_[static_cast<std::size_t>(i)];
      row[i] = static_cast<float>(std::cos(angle));
      row[half + i] = static_cast<float>(std::sin(angle));
    }
  }
  positions_ = positions;
}

}  // namespace llama
