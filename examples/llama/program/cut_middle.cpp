#include "examples/llama/program/cut_middle.hpp"

#include "examples/llama/program/counted.hpp"

namespace llama {

std::vector<TokenId> cut_middle(std::vector<TokenId> tokens, Index longest) {
  if (longest < 2) fail("a prompt of at most ", counted(longest, "token"), " is out of range, at least 2");
  if (std::ssize(tokens) <= longest) return tokens;
  const Index half = longest / 2;
  tokens.erase(tokens.begin() + half, tokens.end() - half);
  return tokens;
}

}  // namespace llama
