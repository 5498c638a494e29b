#pragma once

#include <memory>
#include <string>

#include "examples/llama/model/rank_group.hpp"

namespace llama {

/// Where a model runs.
struct Placement {
  std::string device = "cpu";             ///< or cuda
  std::string dtype = "f32";              ///< bf16, or on a CUDA device f16
  int threads = 1;                        ///< on the CPU
  bool int8 = false;                      ///< weights in int8, on the CPU
  std::shared_ptr<RankGroup> group = {};  ///< the ranks that the model is split over; none: this process has all of it
};

}  // namespace llama
