#include "support/cuda_emulation.hpp"
// The same tests as on a device.
#include "cuda_cases.hpp"
