#pragma once

namespace llama::test {

/// The emulated device's cuDNN, of which the host uses one attention.
struct EmulatedCudnn {
  bool missing = false;     ///< it cannot be set up
  bool has_kernels = true;  ///< for the problems that it is asked
  int runs = 0;             ///< of its attention, so far
};
EmulatedCudnn& emulated_cudnn();

}  // namespace llama::test
