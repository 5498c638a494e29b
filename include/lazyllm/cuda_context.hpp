#pragma once

/// \file
/// The control plane and the context of the CUDA backend, for an engine's own kernels and its host code: any compiler
/// takes it, and it brings neither Thrust nor the library's kernels, which take most of the time to compile.

#include "lazyllm/backend/cuda/context.hpp"
#include "lazyllm/core.hpp"
