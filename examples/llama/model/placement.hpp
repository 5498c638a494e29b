#pragma once

#include <string>

namespace llama {

/// Where a model runs.
struct Placement {
  std::string device = "cpu";  ///< or cuda
  std::string dtype = "f32";   ///< bf16, or on a CUDA device f16
  int threads = 1;             ///< on the CPU
  bool int8 = false;           ///< weights in int8, on the CPU
};

}  // namespace llama
