#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "examples/llama/base.hpp"

namespace llama {

/// One question of a data set, ready to be asked.
struct Item {
  std::string id;       ///< unique within the data: DATASET/ID, or DATASET/FILE:LINE where the line has no _id
  std::string place;    ///< FILE:LINE, for messages
  std::string dataset;  ///< one that `score` knows
  std::string prompt;   ///< UTF-8, not empty
  std::vector<std::string> answers;      ///< at least one
  std::vector<std::string> all_classes;  ///< may be empty
  Index max_tokens = 0;                  ///< to generate at most, at least 1
  std::uint64_t fingerprint = 0;         ///< of all of the above that the result depends on
};

/// A line that could not be used.
struct BadLine {
  std::string place;  ///< FILE:LINE
  std::string reason;
};

}  // namespace llama
