#pragma once

#include "examples/llama/base.hpp"

namespace llama {

/// Heads of an attention layer. Query head h reads key/value head h / (heads / kv_heads).
struct AttentionShape {
  Index heads = 0;
  Index kv_heads = 0;  ///< divides `heads`
  Index head_dim = 0;  ///< even
  float scale = 1;     ///< of the scores, usually 1 / sqrt(head_dim)
};

}  // namespace llama
