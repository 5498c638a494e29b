#pragma once

#include <vector>

#include "examples/llama/base.hpp"

namespace llama {

/// What a device can do at best with a model's shapes in bfloat16, and the least that a dense prefill takes at these
/// rates. Norms, activations and the like are left out.
struct DeviceFloor {
  double gemm_rate = 0;     ///< floating-point operations per second of cuBLASLt on the products of one layer
  double copy_rate = 0;     ///< bytes per second, read and written, of a copy within the device
  double gemm_ms = 0;       ///< all matrix products of the prefill
  double attention_ms = 0;  ///< attention of the prefill, were it as fast as the matrix products
};

/// What is run: `batch` prompts of `prompt` tokens at once, then `generate` - 1 decode steps.
struct DeviceCase {
  Index prompt = 0;
  Index batch = 1;
  Index generate = 1;
  Index repeats = 1;  ///< of the decode steps, and the fewest of the prefills
};

/// Times of one way to run a case, between events on the stream and until the logits are on the host.
struct DeviceRun {
  std::vector<double> prefill_ms;              ///< of all turns
  std::vector<std::vector<double>> decode_ms;  ///< of the first turns, as many as there are repeats: each step's
  double operations = 0;                       ///< of a prefill
  Index kv_bytes = 0;
};

/// Two ways to run a case, turn by turn: what changes with the time, such as clocks, is in both.
struct DevicePair {
  DeviceRun dense;
  DeviceRun library;
};

struct DeviceTimes {
  DevicePair keep_one;          ///< everything kept; no decode steps
  DevicePair lazy;              ///< pruned
  DeviceRun graphs;             ///< pruned, with decode steps as CUDA graphs; empty where these failed
  double library_share = 0;     ///< part of the lazy prefill's layers that the library's own work takes
  double revived_per_step = 0;  ///< rows taken out of the Aux Cache by a decode step, on average
  DeviceFloor floor;
};

}  // namespace llama
