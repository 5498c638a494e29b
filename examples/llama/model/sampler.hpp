#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "examples/llama/token_ids.hpp"

namespace llama {

/// How the next token is drawn from the logits.
struct Sampling {
  float temperature = 0;  ///< 0: the most likely token
  float top_p = 1;        ///< draw among the most likely tokens that hold this share of the probability
  std::uint64_t seed = 0;
};

/// Draws tokens; two samplers with equal settings draw the same tokens from the same logits.
class Sampler {
 public:
  /// Throws `std::invalid_argument` for a negative temperature or a top_p outside (0, 1].
  explicit Sampler(const Sampling& sampling);

  /// Throws `std::invalid_argument` if a logit is not a finite number.
  TokenId draw(std::span<const float> logits);

 private:
  Sampling sampling_;
  std::mt19937_64 random_;
  std::vector<double> probabilities_;
  std::vector<TokenId> order_;
};

}  // namespace llama
