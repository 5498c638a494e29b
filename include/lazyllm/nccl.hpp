#pragma once

/// \file
/// Ranks over NCCL; link LazyLLM::cuda and NCCL. A backend is included beside it.

#include "lazyllm/core.hpp"
#include "lazyllm/parallel/nccl.hpp"
