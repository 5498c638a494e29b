#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "examples/llama/base.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

/// \file
/// What shortens a prompt before the model sees it. The tokens that stay keep their order and are numbered anew.

namespace llama {

/// The tokens themselves if there are at most `longest`; else the first and the last `longest / 2` of them, as
/// LongBench does. Throws `std::invalid_argument` if `longest` is below 2.
std::vector<TokenId> cut_middle(std::vector<TokenId> tokens, Index longest);

/// What a filter keeps.
struct FilterOptions {
  double keep = 1;          ///< share of the prompt's tokens, in (0, 1]; the protected ones count as kept
  Index protect_first = 0;  ///< tokens that always stay
  Index protect_last = 1;
};

/// The tokens with the highest `ranks` `[tokens]`; equal ranks go to the earlier token. Never fewer than the protected
/// ones. Throws `std::invalid_argument` unless there is a rank for each token and `options` are in range.
std::vector<TokenId> keep_highest(Tokens tokens, std::span<const double> ranks, const FilterOptions& options);

/// The paper's "random token drop": a random part of the tokens, the same for equal seeds on every machine.
std::vector<TokenId> keep_at_random(Tokens tokens, const FilterOptions& options, std::uint64_t seed);

/// Selective Context token by token: those that tell most, which are the least likely ones. `log_probabilities` is
/// `[tokens]`, see `token_log_probabilities`.
std::vector<TokenId> keep_informative(Tokens tokens, std::span<const float> log_probabilities,
                                      const FilterOptions& options);

}  // namespace llama
